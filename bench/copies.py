"""Measures copies: one path with its servers, scenario after scenario, every program in every round.

Before each copy the source is read into memory (warm) and everything unwritten is flushed; the destination is a folder
never used before. The first copy of each program is compared with its source by size and SHA-256.
"""

import contextlib
import os
import random
import shutil
import statistics
import sys
import tempfile
import time

from bench import data, floor, machine, network, record, scenarios
from bench.measure import Fail, Group, Trace, handed, machine_seconds, middle_rate, received, resent, spend
from bench.peers import PEERS, iperf
from bench.peers.base import Stage

LONG = 30  # seconds: a program that takes longer runs in three rounds only


def say(text):
    print(text, file=sys.stderr, flush=True)


def has_many_small_files(folder):
    """Whether its removal would slow the copies after it: ext4 without a journal looks for minutes at each inode that became
    free before it makes a new one (docs/design/0009)."""
    sizes = [os.lstat(os.path.join(at, name)).st_size for at, _, names in os.walk(folder) for name in names]
    return len(sizes) >= 1000 and sum(sizes) < 10**9


class Bench:
    """All that lives as long as the whole run: folders, groups, data, results."""

    def __init__(self, options, work):
        self.options, self.work = options, work
        self.source, self.target = os.path.join(work, "source"), os.path.join(work, "target")
        os.mkdir(self.source)
        os.mkdir(self.target)
        # The xrootd server does not run as root.
        os.chmod(work, 0o755)
        os.chmod(self.target, 0o777)
        self.groups = [Group("source"), Group("target")]
        self.made, self.digests, self.verified = {}, {}, set()
        self.peers = {name: PEERS[name]() for name in PEERS}
        self.results = record.Results(options, machine.facts(work))
        machine.warm()
        self.begin = time.monotonic()

    def close(self):
        for group in self.groups:
            group.close()

    def chosen(self, names):
        """Those of the names that `--peers` does not leave out; `renkei` brings its variants that few scenarios have."""
        peers = self.options.peers
        variants = "renkei" in peers
        return [name for name in names if not peers or name in peers
                or (variants and name.startswith("renkei") and name not in scenarios.MOVERS)]

    def out_of_time(self):
        return self.options.budget and time.monotonic() - self.begin > self.options.budget

    def make(self, group):
        """Creates the data of all scenarios of a path that is not there yet, before servers could miss it."""
        wanted = {one.data.item: one.data for one in group if one.data}
        if wanted.keys() - self.made.keys():
            self.drop_if_crowded(wanted)
        self.need_space(wanted)
        for item, what in wanted.items():
            if item not in self.made:
                self.made[item] = what.make(self.source, self.options.scale)

    def need_space(self, wanted):
        """What is still to be made and one copy of the largest must find room, with some air."""
        sizes = [what.size * self.options.scale for what in wanted.values()]
        new = sum(what.size for item, what in wanted.items() if item not in self.made) * self.options.scale
        need, free = 1.1 * (new + max(sizes, default=0)), shutil.disk_usage(self.work).free
        if free < need:
            raise Fail(f"{free / 1e9:.1f} GB free in {self.options.work}, {need / 1e9:.1f} are needed")

    def drop_if_crowded(self, wanted):
        """Large sources go when they would no longer all fit in memory with a copy."""
        new = sum(what.size for item, what in wanted.items() if item not in self.made) * self.options.scale
        if sum(size for size, _ in self.made.values()) + new < self.options.keep:
            return
        for item in self.made.keys() - wanted.keys():
            path = os.path.join(self.source, item)
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
            del self.made[item]
            self.digests.pop(item, None)

    def verify(self, name, what, found):
        """Compares the first copy of each kind of data by each program."""
        if (name, what.item) in self.verified:
            return
        if what.item not in self.digests:
            self.digests[what.item] = data.digests(os.path.join(self.source, what.item))
        data.compare(self.digests[what.item], found())
        self.verified.add((name, what.item))


class PathRun:
    """One path: its network is up, the servers of all programs run, scenario after scenario is measured."""

    def __init__(self, bench, path, kernel):
        self.bench, self.path, self.served, self.checks = bench, path, {}, {}
        if path.cable:
            self.network = network.Cable()
        else:
            file = scenarios.topology_file(path, bench.work)
            self.network = network.Lab(bench.options.renkei, file, path.sites)
        try:
            self.network.set_kernel(kernel)
            bench.results.machine["sysctls"].update(
                machine.sysctls(machine.OF_SITE, lambda command: self.network.argv(path.dst, command)))
            self.kernel = kernel
            self.stage = self.stage_of(path.src, path.dst)
        except BaseException:
            self.close()
            raise

    def stage_of(self, source, target):
        """The stage for two sites of this network."""
        work = tempfile.mkdtemp(prefix="servers-", dir=self.bench.work)
        os.chmod(work, 0o755)
        bench = self.bench
        return Stage(self.network, source, target, bench.source, bench.target, work, bench.groups, bench.options.renkei,
                     self.kernel)

    def close(self):
        for group in self.bench.groups:
            group.stop()
        for name in self.served:
            self.bench.peers[name].end(self.stage)
        self.network.close()

    def check(self, scenario):
        """What ping and iperf3 see on this path, once; with eight streams where a steady rate is looked for."""
        seconds, ramp = (3 if self.bench.options.quick else 8), 2 + int(self.path.rtt_ms / 1000 * 20)
        if "rtt_ms" not in self.checks:
            self.checks["rtt_ms"] = round(iperf.round_trip(self.stage), 3)
            self.checks["iperf_bps"] = round(iperf.rate(self.stage, seconds, ramp))
        if scenario.eight and "iperf8_bps" not in self.checks:
            self.checks["iperf8_bps"] = round(iperf.rate(self.stage, seconds, ramp, 8))
        return dict(self.checks)

    def ready(self, name):
        """Starts a program's servers if they do not run yet; returns why it cannot take part, or None."""
        peer = self.bench.peers[name]
        if name not in self.served or (self.served[name] is None and not peer.serves(self.stage)):
            self.served[name] = peer.missing() or peer.lacks(self.stage)
            if self.served[name] is None:
                try:
                    peer.serve(self.stage)
                except Fail as error:
                    self.served[name] = str(error)
        return self.served[name]

    def take_part(self, entry, names):
        """Those of the programs that can; why the others cannot goes into the entry."""
        found, chosen = [], self.bench.chosen(names)
        for name in names:
            if name not in chosen:
                self.bench.results.absent(entry, name, "left out of this run")
                continue
            reason = self.ready(name)
            if reason:
                self.bench.results.absent(entry, name, reason)
                say(f"  {name}: {reason}")
            else:
                found.append(name)
        return found

    def limit(self, size):
        """Seconds a run may take: six times what the path allows, or a minute."""
        ideal = size / (self.path.limit or 200e6)
        return max(self.bench.options.limit, 6 * ideal)

    @contextlib.contextmanager
    def folder(self, peer=None):
        """A destination never used before, gone afterwards, or at the end of all if it has many small files."""
        path = tempfile.mkdtemp(prefix="r-", dir=self.bench.target)
        os.chmod(path, 0o777)
        try:
            yield path
        finally:
            self.clear(peer, path)

    def clear(self, peer, folder):
        """Removes a copy; a server whose client was stopped may still write for a moment."""
        try:
            if peer:
                peer.clear(self.stage, folder)
        except Fail as error:
            say(f"  {peer.name}: {error}")
        if has_many_small_files(folder):
            return
        end = time.monotonic() + 10
        while os.path.exists(folder):
            shutil.rmtree(folder, ignore_errors=time.monotonic() < end)

    def command(self, name, scenario, folder, entry=None, more=()):
        """The argv of a copy at the client's site, not yet in a group; told to the entry."""
        peer, item = self.bench.peers[name], scenario.data.item
        if entry is not None:
            shown = peer.shown(self.stage, item, os.path.join(self.bench.target, "RUN"))
            self.bench.results.program(entry, peer, shown)
        return self.network.argv(peer.client(self.stage), [*peer.copy(self.stage, item, folder), *more])

    def grouped(self, name, argv):
        """Into the group of the site where the program's client runs."""
        client = self.bench.peers[name].client(self.stage)
        return [*self.bench.groups[client == self.stage.dst].enter(), *argv]

    def copy(self, name, scenario, turn, entry=None, more=(), every=0.1):
        """One copy by one program into a fresh folder; sampled if the scenario asks for it."""
        peer, bench = self.bench.peers[name], self.bench
        size = bench.made[scenario.data.item][0]
        peer.renew(self.stage)
        if peer.after_another:
            first = self.another(name, scenario, size)
            if first.error:
                return first
        with self.folder(peer) as folder:
            data.warm(os.path.join(bench.source, scenario.data.item))
            argv = self.grouped(name, self.command(name, scenario, folder, entry, more))
            os.sync()
            inside, sender = self.network.process(self.stage.dst), self.network.process(self.stage.src)
            trace = Trace(inside, bench.groups, every) if scenario.trace else None
            before, again, lost = received(inside), resent(sender), self.network.drops()
            bytes_before, packets_before = handed(sender)
            log = os.path.join(bench.work, "client.log")
            run = spend(argv, bench.groups, self.network.wire_seconds, self.limit(size), log, trace)
            run.received, run.resent = received(inside) - before, resent(sender) - again
            run.drops = self.network.drops() - lost
            bytes_after, packets_after = handed(sender)
            run.handed = {"bytes": bytes_after - bytes_before, "packets": packets_after - packets_before}
            self.sync_after(run)
            if trace:
                run.steady = round(middle_rate(run.trace, size))
            if run.error is None:
                try:
                    bench.verify(name, scenario.data, lambda: peer.found(self.stage, scenario.data.item, folder))
                except Fail as error:
                    run.error = str(error)
        return run

    def another(self, name, scenario, size):
        """The job before the one that counts; only that it was well done matters."""
        peer = self.bench.peers[name]
        with self.folder(peer) as folder:
            argv = self.grouped(name, self.command(name, scenario, folder))
            log = os.path.join(self.bench.work, "before.log")
            first = spend(argv, self.bench.groups, self.network.wire_seconds, self.limit(size), log)
        if first.error:
            first.error = f"the job before: {first.error}"
        return first

    def sync_after(self, run):
        """What is still missing until the copy is on stable storage: time, and the whole machine's work."""
        begin, busy = time.monotonic(), machine_seconds()
        os.sync()
        run.sync_seconds, run.sync_machine = time.monotonic() - begin, machine_seconds() - busy

    def tell(self, turn, name, figures):
        shown = ", ".join(f"{key} {value}" for key, value in figures.items())
        say(f"  {turn + 1} {name:10} {shown}")

    def begin(self, scenario):
        """The entry of a scenario on this path, with what ping and iperf3 say of it."""
        size, files = self.bench.made[scenario.data.item] if scenario.data else (0, 0)
        checks = {} if self.path.cable or not scenario.data else self.check(scenario)
        return self.bench.results.begin(scenario, size, files, checks)


def measure(run, scenario, entry):
    """All rounds of one scenario of copies."""
    bench, size = run.bench, entry["bytes"]
    names = run.take_part(entry, scenario.peers)
    if "RAW" in names and scenario.floor:
        entry["floor"] = floor.measure(bench.options)
    # By chance, but the same whenever this scenario is measured: nobody always follows the same program.
    order = random.Random(scenario.id)
    times = {name: [] for name in names}
    for turn in range(bench.options.rounds):
        for name in order.sample(names, len(names)):
            if bench.out_of_time():
                return bench.results.cut(entry, turn)
            if turn >= 3 and statistics.median(times[name]) > LONG:
                continue
            one = run.copy(name, scenario, turn, entry)
            times[name].append(one.seconds)
            kept = one.record()
            if turn or not scenario.drawn:
                kept.pop("trace", None)
            bench.results.add(entry, name, turn, kept)
            say(f"  {turn + 1} {name:10} {one.seconds:8.2f} s {size / 1e6 / one.seconds:8.1f} MB/s"
                f"{'  ' + one.error if one.error else ''}")
            if one.error:
                names = [other for other in names if other != name]

