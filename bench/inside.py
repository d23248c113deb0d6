"""What programs do inside mounts beside whole copies: I/O of one length, a replica of this machine, many small files.

Each figure is of a mount made for it, or of the plain folder that the mount shows (`native`). Read docs/benchmarks.md for
what must hold of them.
"""

import os
import statistics
import subprocess
import time

from bench import data
from bench.measure import Fail, output
from bench.streams import by_program

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "raw", "inside.c")
NATIVE = "native"
LENGTHS = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
RANDOM_READS, SMALL_FILES, SMALL_BYTES, STAT_ROUNDS = 100_000, 1000, 4096, 50


def program(run):
    """bench/raw/inside.c, compiled."""
    path = os.path.join(run.bench.work, "inside")
    if not os.path.exists(path):
        output("cc", "-O2", "-Wall", "-Wextra", "-o", path, SOURCE)
        os.chmod(path, 0o755)
    return path


def each(run, entry, scenario, measure):
    """Every program in every round, in an order that changes; `measure` gives the figures of one."""
    bench = run.bench
    names = run.take_part(entry, [name for name in scenario.peers if name != NATIVE])
    names += [NATIVE] * (NATIVE in scenario.peers)
    for turn in range(bench.options.rounds):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            if bench.out_of_time():
                return bench.results.cut(entry, turn)
            try:
                figures = measure(name)
            except Fail as error:
                figures = {"error": str(error)}
            finally:
                if name != NATIVE:
                    bench.peers[name].unmount(run.stage)
            bench.results.add(entry, name, turn, figures)
            run.tell(turn, name, figures)


def told(run, entry, name, shown):
    """What the report says of a program."""
    if name != NATIVE:
        run.bench.results.program(entry, run.bench.peers[name], shown)


def timed(run, name, command, limit):
    """Runs a command in a program's mount, or beside all of them; what it printed, and seconds."""
    stage = run.stage
    if name == NATIVE:
        argv = run.network.argv(stage.src, command)
    else:
        peer = run.bench.peers[name]
        argv = run.network.argv(peer.here(stage)[0], peer.inside(stage, command))
    return in_time(argv, limit)


def in_time(argv, limit):
    """Runs a command; what it printed, and seconds."""
    begin = time.monotonic()
    try:
        shown = output(*argv, timeout=limit)
    except subprocess.TimeoutExpired:
        raise Fail(f"not done after {limit:.0f} s") from None
    return shown, time.monotonic() - begin


# ---- I/O lengths -----------------------------------------------------------------------------------------------------


def lengths(run, scenario, entry):
    """One file in order, in pieces of each length; a fresh mount for each."""
    size, item = entry["bytes"], scenario.data.item

    def measure(name):
        found = {}
        for length in LENGTHS:
            peer = run.bench.peers[name]
            peer.renew(run.stage)
            data.warm(os.path.join(run.bench.source, item))
            with run.folder() as folder:
                command = peer.pieces(run.stage, item, folder, length)
                told(run, entry, name, f"dd bs={length}")
                found[str(length)] = round(timed(run, name, command, run.limit(size))[1], 3)
        return {"seconds": found}
    each(run, entry, scenario, measure)


def lengths_section(entry):
    lines = ["", "| MB/s (of the limit) | " + " | ".join(shown_bytes(length) for length in LENGTHS) + " |",
             "|---|" + "--:|" * len(LENGTHS)]
    for name, _ in by_program(entry):
        rates = [rate_at(entry, name, length) for length in LENGTHS]
        lines.append(f"| {name} | " + " | ".join(f"{rate / 1e6:.1f} ({rate / entry['limit']:.2f})" for rate in rates) + " |")
    return [*lines, "", "One file read or written in order in pieces of one length by `dd`, through a mount made for it; writers "
            "end with fsync."]


def rate_at(entry, name, length):
    """Bytes per second of the median run with pieces of a length; None if there is none."""
    runs = dict(by_program(entry)).get(name) if entry else None
    return entry["bytes"] / statistics.median(run["seconds"][str(length)] for run in runs) if runs else None


def shown_bytes(length):
    return f"{length >> 20} MiB" if length >= 1 << 20 else f"{length >> 10} KiB"


# ---- a replica of this machine ---------------------------------------------------------------------------------------


def local(run, scenario, entry):
    """Reading a file whose plain file is on the machine of the mount, beside reading the plain file."""
    item, inside = scenario.data.item, program(run)

    def measure(name):
        data.warm(os.path.join(run.bench.source, item))
        path = os.path.join(run.stage.source, item)
        if name != NATIVE:
            peer = run.bench.peers[name]
            peer.renew(run.stage)
            told(run, entry, name, "dd, bench/raw/inside random")
            path = os.path.join(peer.point(run.stage), item)
        seconds = [timed(run, name, ["dd", f"if={path}", "of=/dev/null", "bs=1M", "status=none"], 120)[1] for _ in range(3)]
        shown, _ = timed(run, name, [inside, "random", path, str(RANDOM_READS)], 120)
        return {"rate": round(entry["bytes"] / min(seconds)), "reads": round(RANDOM_READS / float(shown))}
    each(run, entry, scenario, measure)


def local_section(entry):
    return [*table(entry, {"rate": ("in order, MB/s", 1e6), "reads": ("4 KiB by chance, thousand a second", 1e3)}), "",
            "The file in the page cache; the best of three reads in order, the first of which is the mount's first."]


# ---- many small files ------------------------------------------------------------------------------------------------


def small(run, scenario, entry):
    """Making small files one after the other, and asking for their attributes."""
    inside = program(run)

    def measure(name):
        with run.folder() as folder:
            if name != NATIVE:
                peer = run.bench.peers[name]
                peer.renew(run.stage)
                told(run, entry, name, "bench/raw/inside create, stat")
                folder = os.path.join(peer.point(run.stage), f"small-{time.monotonic_ns()}")
                timed(run, name, ["mkdir", folder], 10)
            shown, _ = timed(run, name, [inside, "create", folder, str(SMALL_FILES), str(SMALL_BYTES)], 120)
            asked, _ = timed(run, name, [inside, "stat", folder, str(STAT_ROUNDS)], 120)
            if name != NATIVE:
                timed(run, name, ["rm", "-r", folder], 120)
        count = SMALL_FILES * STAT_ROUNDS
        return {"creates": round(SMALL_FILES / float(shown), 1), "stats": round(count / float(asked))}
    each(run, entry, scenario, measure)


def small_section(entry):
    return [*table(entry, {"creates": ("create, write 4 KiB, close, a second", 1), "stats": ("stat, thousand a second", 1e3)}),
            "", f"{SMALL_FILES:,} files by one thread; what renkei closed is durable, what others closed is not. `stat` asks for "
            f"all names of that folder {STAT_ROUNDS} times."]


# ---- what the figures come to ----------------------------------------------------------------------------------------


def middle(entry, name, key):
    """The median of a figure of a program; None if there is none."""
    runs = dict(by_program(entry)).get(name) if entry else None
    return statistics.median(run[key] for run in runs) if runs else None


def share(entry, name, key, of=NATIVE):
    """A program's figure over another's."""
    one, other = middle(entry, name, key), middle(entry, of, key)
    return one / other if one is not None and other else None


def table(entry, columns):
    heads = [head for title, _ in columns.values() for head in (title, "of native")]
    lines = ["", "| | " + " | ".join(heads) + " |", "|---|" + "--:|" * len(heads)]
    for name, _ in by_program(entry):
        cells = []
        for key, (_, unit) in columns.items():
            part = share(entry, name, key)
            cells += [f"{middle(entry, name, key) / unit:,.1f}", f"{part:.2f}" if part is not None else ""]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines

