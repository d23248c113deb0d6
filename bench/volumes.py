"""Volumes over sites: a large tree listed where it is followed, many files made there, and a site that begins to follow.

The home is at one end of the path, the site that follows it at the other. Whoever lists or writes has a mount made for it, of
the PoP of the own site, so that no cache of a client has what earlier ones read.
"""

import concurrent.futures
import contextlib
import os
import shutil
import statistics
import subprocess
import time

from bench import inside
from bench.measure import Fail, kill, output
from bench.peers.followed import Followed
from bench.peers.mounts import Mount
from bench.streams import by_program

VOLUME, PORT = "big", 17560
HOME, FOLLOWER, PENDING = "at the home", "at the follower", "at the follower, 1,000 changes pending"
ENDS = (HOME, FOLLOWER, PENDING)
WRITER = "a mount at the follower"
JOINER = "a new follower"
LISTED, A_FOLDER, CHANGES = 100_000, 1000, 1000
WRITTEN, BYTES = 10_000, 4096
JOINED = 1_000_000
STAGES = {"closed": "last close", "named": "home has all names", "there": "home has all content"}


class At(Mount):
    """A mount of the volume at one of the two sites, of its own PoP."""

    def __init__(self, pop, name):
        self.pop, self.name = pop, name

    def here(self, stage):
        return self.pop.site, None

    def mounts(self, stage, folder, point):
        return self.pop.command("mount", "--foreground", f"/{VOLUME}", point)


class Pair(Followed):
    """The same with a tree of empty files in the volume."""

    def __init__(self, run, files):
        self.run = run
        folders = [os.path.join(run.bench.target, name) for name in ("home", "far")]
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
            os.mkdir(folder)
        tree = os.path.join(folders[0], VOLUME)
        make_empty(tree, files)
        super().__init__(run.stage, VOLUME, PORT, tree, folders[1])

    def end_home(self):
        kill(self.home.processes(), 15)
        end = time.monotonic() + 20
        while self.home.processes():
            if time.monotonic() > end:
                raise Fail("the home's PoP does not end")
            time.sleep(0.02)

    def close(self):
        for pop in (self.home, self.far):
            kill(pop.processes(), 15)


def make_empty(folder, files):
    """Empty files, by thousands in folders."""
    os.mkdir(folder)
    for number in range(files):
        if number % A_FOLDER == 0:
            below = os.path.join(folder, f"run-{number // A_FOLDER:04}")
            os.mkdir(below)
        os.close(os.open(os.path.join(below, f"sample-{number:07}.fastq.gz"), os.O_WRONLY | os.O_CREAT, 0o644))


@contextlib.contextmanager
def mounted(run, pop, name):
    """A mount of a site's PoP, gone afterwards."""
    mount = At(pop, "volume-" + name.split(",")[0].replace(" ", "-"))
    mount.renew(run.stage)
    try:
        yield mount
    finally:
        mount.unmount(run.stage)


def within(run, mount, command, limit=300):
    """Runs a command where a mount is seen; what it printed, and seconds."""
    return inside.in_time(run.network.argv(mount.pop.site, mount.inside(run.stage, command)), limit)


def rounds(run, entry, name, one):
    """Measures one thing in each round, as long as there is time."""
    bench = run.bench
    for turn in range(bench.options.rounds):
        if bench.out_of_time():
            bench.results.cut(entry, turn)
            return
        try:
            figures = one(turn)
        except Fail as error:
            figures = {"error": str(error)}
        bench.results.add(entry, name, turn, figures)
        run.tell(turn, name, figures)


# ---- a large tree ----------------------------------------------------------------------------------------------------


def listing(run, scenario, entry):
    """`ls -lR` of a tree in fresh mounts at the home and at a site that follows, and there once more while its home is away."""
    bench, files = run.bench, int(LISTED * min(run.bench.options.scale, 1))
    pair = Pair(run, files)
    try:
        pair.follow()
        pair.await_writing()
        entry["files"] = files
        for turn in range(bench.options.rounds):
            for name in [HOME, FOLLOWER][:: 1 if turn % 2 else -1] + [PENDING]:
                if bench.out_of_time():
                    return bench.results.cut(entry, turn)
                figures = one_listing(run, pair, name, files)
                bench.results.add(entry, name, turn, figures)
                run.tell(turn, name, figures)
    finally:
        pair.close()


def one_listing(run, pair, name, files):
    try:
        if name != PENDING:
            return listed(run, pair.home if name == HOME else pair.far, name, files)
        pair.end_home()
        change(run, pair)
        if pair.followed().get("pending", 0) < CHANGES:
            raise Fail(f"only {pair.followed().get('pending')} changes are pending")
        figures = listed(run, pair.far, name, files)
        pair.home.start()
        pair.await_that(pair.is_same)
        return figures
    except Fail as error:
        return {"error": str(error)}


def change(run, pair):
    """Writes some files at the follower."""
    source = os.path.join(run.bench.work, "changes")
    if not os.path.isdir(source):
        os.mkdir(source)
    for number in range(CHANGES):
        with open(os.path.join(source, f"change-{number:04}"), "w") as file:
            file.write(f"{number} {time.monotonic_ns()}")
    pair.far.run("cp", "-r", source, f"/{VOLUME}/")


def listed(run, pop, name, files):
    """Seconds of `ls -lR` in a mount, and of `renkei find`."""
    shown = os.path.join(run.bench.work, "listed")
    with mounted(run, pop, name) as mount:
        _, seconds = within(run, mount, ["sh", "-c", 'ls -lR "$0" > "$1"', mount.point(run.stage), shown])
    check_count(shown, files)
    begin = time.monotonic()
    output(*run.network.argv(pop.site, ["sh", "-c", '"$@" > "$0"', shown, *pop.command("find", f"/{VOLUME}")]))
    find = time.monotonic() - begin
    check_count(shown, files)
    return {"seconds": round(seconds, 3), "find": round(find, 3)}


def check_count(shown, files):
    with open(shown, "rb") as lines:
        count = sum(b"sample-" in line for line in lines)
    if count != files:
        raise Fail(f"{count} of {files} files were listed")


def listing_section(entry):
    lines = ["", "| | `ls -lR`, s | least, most | against the home | `renkei find`, s | against the home |",
             "|---|--:|---|--:|--:|--:|"]
    for name, runs in by_program(entry):
        times = sorted(run["seconds"] for run in runs)
        parts = [part(entry, name, key) for key in ("seconds", "find")]
        shares = ["" if name == HOME or one is None else f"{one:.2f}" for one in parts]
        lines.append(f"| {name} | {statistics.median(times):.2f} | {times[0]:.2f}, {times[-1]:.2f} | {shares[0]} "
                     f"| {inside.middle(entry, name, 'find'):.2f} | {shares[1]} |")
    return [*lines, "", f"{entry['files']:,} empty files by thousands in folders; a fresh mount of the PoP of the own site for each; "
            "the pending changes are files written while the home's PoP is down."]


def part(entry, name, key):
    """A figure at a site that follows over that at the home."""
    return inside.share(entry, name, key, HOME)


# ---- many files ------------------------------------------------------------------------------------------------------


def bulk(run, _scenario, entry):
    """Many small files by one program through a mount at a site that follows: until they are closed, and known at the home."""
    bench, program = run.bench, inside.program(run)
    files = int(WRITTEN * min(bench.options.scale, 1))
    pair = Pair(run, 0)
    try:
        pair.follow()
        pair.await_writing()
        entry["data"], entry["files"], entry["bytes"] = "small files", files, files * BYTES
        rounds(run, entry, WRITER, lambda turn: one_bulk(run, pair, program, files, turn))
    finally:
        pair.close()


def one_bulk(run, pair, program, files, turn):
    with mounted(run, pair.far, WRITER) as mount:
        folder = os.path.join(mount.point(run.stage), f"bulk-{turn}")
        within(run, mount, ["mkdir", folder])
        pair.await_that(pair.is_same)
        before = pair.standing(pair.home)["records"]
        begin = time.monotonic()
        shown, _ = within(run, mount, [program, "create", folder, str(files), str(BYTES)])
        named = pair.await_that(pair.is_same) - begin
        there = pair.await_that(lambda: not pair.standing(pair.home).get("away")) - begin
    if pair.standing(pair.home)["records"] < before + files:
        raise Fail("the home does not have all files")
    return {"closed": round(float(shown), 3), "named": round(named, 3), "there": round(there, 3)}


def bulk_section(entry):
    lines = ["", "| | median, s | least, most | files/s |", "|---|--:|---|--:|"]
    for _, runs in by_program(entry):
        for key, title in STAGES.items():
            times = sorted(run[key] for run in runs)
            middle = statistics.median(times)
            lines.append(f"| {title} | {middle:.2f} | {times[0]:.2f}, {times[-1]:.2f} | {entry['files'] / middle:,.0f} |")
    return [*lines, "", f"{entry['files']:,} files of {BYTES >> 10} KiB, made one after the other by one thread through a mount at the site "
            "that follows; each is durable there when it is closed."]


# ---- a site that begins to follow ------------------------------------------------------------------------------------


def joining(run, _scenario, entry):
    """A site begins to follow a large volume: time, memory of both PoPs, and how long others at the home wait meanwhile."""
    bench, files = run.bench, int(JOINED * min(run.bench.options.scale, 1))
    pair = Pair(run, files)
    try:
        entry["files"] = files
        scans = [scan_seconds(pair)]
        pair.home.restart()
        pair.await_that(lambda: pair.standing(pair.home).get("scan"), 600)
        scans.append(scan_seconds(pair))
        rounds(run, entry, JOINER, lambda _turn: {"scan": scans, **one_joining(run, pair)})
    finally:
        pair.close()


def scan_seconds(pair):
    return round(pair.standing(pair.home)["scan"]["took_ms"] / 1000, 1)


def one_joining(run, pair):
    memory = [Peak(pop) for pop in (pair.home, pair.far)]
    before = [asked(run, pair) for _ in range(20)]
    begin, during = time.monotonic(), []
    # To subscribe waits until the tree is here.
    with concurrent.futures.ThreadPoolExecutor(1) as other:
        following = other.submit(pair.follow)
        while not (following.done() and pair.is_same()):
            during.append(asked(run, pair))
            for one in memory:
                one.look()
            if time.monotonic() > begin + 600:
                raise Fail("the follower is not up to date after 600 s")
        following.result()
    seconds = time.monotonic() - begin
    for one in memory:
        one.look()
    find, show = (used(run, pair.far, *words) for words in (("find", f"/{VOLUME}"), ("volume", "show", VOLUME)))
    pair.far.run("volume", "unsubscribe", VOLUME)
    return {"seconds": round(seconds, 1), "home_mb": memory[0].mb(), "far_mb": memory[1].mb(), "find": find, "show": show,
            "before_ms": round(1000 * statistics.median(before), 1), "during_ms": round(1000 * statistics.median(during), 1),
            "worst_ms": round(1000 * max(during), 1)}


def asked(run, pair):
    """Seconds of a small question to the home by another user of it."""
    begin = time.monotonic()
    output(*run.network.argv(pair.home.site, pair.home.command("ls", f"/{VOLUME}/run-0000/sample-0000000.fastq.gz")))
    return time.monotonic() - begin


def used(run, pop, *words):
    """Seconds of a command at a site, and the most memory of it in MB."""
    with open(os.path.join(run.bench.work, "used"), "wb") as out:
        begin = time.monotonic()
        child = subprocess.Popen(run.network.argv(pop.site, pop.command(*words)), stdin=subprocess.DEVNULL, stdout=out)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.monotonic() - begin
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise Fail(f"{words}: status {child.returncode}")
    return [round(seconds, 3), round(usage.ru_maxrss / 1000, 1)]


class Peak:
    """The most memory of a PoP's daemon above what it had at first."""

    def __init__(self, pop):
        self.pop, self.first, self.most = pop, 0, 0
        self.look()
        self.first = self.most

    def look(self):
        for process in self.pop.processes():
            try:
                with open(f"/proc/{process}/status") as status:
                    rows = dict(line.split(":", 1) for line in status)
            except OSError:
                continue
            self.most = max(self.most, int(rows.get("RssAnon", "0 kB").split()[0]) / 1000)

    def mb(self):
        return [round(self.first, 1), round(self.most, 1)]


def joining_section(entry):
    lines = ["", "| round | s | MB at the home, before and most | at the follower | a question to the home, ms: before | meanwhile | "
             "longest | the home's scan, s: first, at a restart | `find` at the follower, s and MB | `volume show` |",
             "|--:|--:|---|---|--:|--:|--:|---|---|---|"]
    for run in entry["runs"]:
        if "error" not in run:
            keys = ("home_mb", "far_mb", "scan", "find", "show")
            home, far, scan, find, show = (f"{one}, {other}" for one, other in (run[key] for key in keys))
            lines.append(f"| {run['round'] + 1} | {run['seconds']} | {home} | {far} | {run['before_ms']} | {run['during_ms']} "
                         f"| {run['worst_ms']} | {scan} | {find} | {show} |")
    return [*lines, "", f"{entry['files']:,} empty files in place; from `renkei volume subscribe` until the copy is whole. Memory of PoPs is "
            "what no file backs, that of commands all they had. The question is `renkei ls` of one file, its own start included."]
