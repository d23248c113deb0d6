"""(a5) Round trip and rate between each two of the seven sites, one pair after the other, beside the paper's tables."""

import itertools

from bench.peers import iperf
from bench.scenarios import SEVEN

# The tables of the RENKEI-PoP paper, row = from, in the order of SEVEN.
PAPER = {
    "rtt_ms": ["- 0.24 9.80 4.27 5.87 6.30 5.71", "0.16 - 9.62 4.27 5.86 6.28 5.71",
               "9.62 9.59 - 12.84 14.39 4.27 14.26", "4.27 4.30 12.86 - 9.08 9.56 8.92",
               "5.83 5.89 14.37 9.06 - 11.12 0.81", "6.32 6.33 4.28 9.51 11.06 - 11.00",
               "5.71 5.71 14.25 8.96 0.83 10.98 -"],
    "mbytes_per_s": ["- 1120 381 770 451 29 174", "1120 - 418 761 450 19 172", "530 526 - 466 319 65 205",
                     "557 555 484 - 466 67 490", "412 413 299 376 - 48 748", "14 12 16 10 7 - 5",
                     "357 433 341 415 623 43 -"],
}
TITLES = {"rtt_ms": "RTT, ms", "mbytes_per_s": "iperf3, one stream, MB/s"}


def measure(run, _scenario, entry):
    bench, found = run.bench, {"rtt_ms": {}, "mbytes_per_s": {}}
    for source, target in itertools.permutations(SEVEN, 2):
        if bench.out_of_time():
            return
        stage = run.stage_of(source, target)
        found["rtt_ms"][f"{source} {target}"] = round(iperf.round_trip(stage), 2)
        found["mbytes_per_s"][f"{source} {target}"] = round(iperf.rate(stage, 2, 1) / 8e6, 1)
    entry["found"] = found


def section(entry):
    lines = []
    for key, title in TITLES.items():
        lines += ["", f"{title}; in brackets the paper's", "", "| from, to | " + " | ".join(SEVEN) + " |",
                  "|---|" + "--:|" * len(SEVEN)]
        for source, paper in zip(SEVEN, PAPER[key]):
            cells = [cell(entry["found"][key].get(f"{source} {target}"), old) for target, old in zip(SEVEN, paper.split())]
            lines.append(f"| {source} | " + " | ".join(cells) + " |")
    return lines


def cell(value, old):
    return "" if value is None else f"{value:g} ({old})"
