"""Side-by-side benchmarks: renkei and other movers over the same emulated paths, in one interleaved run."""
