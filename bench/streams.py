"""Several TCP streams at once, as `ss` sees them at the sender: how evenly they run, and what two jobs get.

`cooperative`: eight streams of one job with CUBIC only, over 30 s, beside eight of iperf3 that know nothing of each
other. `jobs`: two jobs at once, the second three seconds later, over the time both run.
"""

import os
import re
import statistics
import subprocess
import threading
import time

from bench.measure import Fail, Group, output, spend
from bench.network import ALLOWED
from bench.peers import iperf
from bench.peers.renkei import CUBIC_ONLY

WINDOW, STREAMS, LATER = 30, 8, 3  # seconds looked at, streams, seconds after which the second job begins
FIELD = re.compile(r"\b(bytes_acked|bytes_retrans):(\d+)")
OWNER = re.compile(r"pid=(\d+)")


def parse(text):
    """Sockets of `ss -tinpHO`: (local, remote) to process, congestion control, bytes acknowledged and sent again."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 5 or words[0] != "ESTAB":
            continue
        owner, fields = OWNER.search(line), dict(FIELD.findall(line))
        control = next((word for word in words[5:] if word in ("cubic", "bbr", "reno")), "")
        found[(words[3], words[4])] = {"process": int(owner.group(1)) if owner else 0, "control": control,
                                       "acked": int(fields.get("bytes_acked", 0)),
                                       "resent": int(fields.get("bytes_retrans", 0))}
    return found


class Sampler(threading.Thread):
    """Asks `ss` at a site again and again; `points` are (seconds, sockets)."""

    def __init__(self, stage, every=0.5):
        super().__init__(daemon=True)
        self.command = stage.network.argv(stage.src, ["ss", "-tinpHO"])
        self.every, self.points, self.over = every, [], threading.Event()
        self.begin = time.monotonic()

    def now(self):
        return time.monotonic() - self.begin

    def run(self):
        while not self.over.wait(self.every):
            at = self.now()
            done = subprocess.run(self.command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
            self.points.append((at, parse(done.stdout)))

    def finish(self):
        self.over.set()
        self.join()
        return self.points


def acked(points, process_of=lambda process: True):
    """For each sample the bytes acknowledged so far per socket; a socket that has gone keeps its last count."""
    last, found = {}, []
    for at, sockets in points:
        for key, one in sockets.items():
            if process_of(one["process"]):
                last[key] = one["acked"]
        found.append((at, dict(last)))
    return found


def total_at(series, at):
    """Bytes of all sockets at a time, between two samples in proportion."""
    sums = [(when, sum(one.values())) for when, one in series]
    before = max((point for point in sums if point[0] <= at), default=sums[0])
    after = min((point for point in sums if point[0] >= at), default=sums[-1])
    if after[0] == before[0]:
        return before[1]
    return before[1] + (after[1] - before[1]) * (at - before[0]) / (after[0] - before[0])


def rates(points, count=STREAMS, window=WINDOW, ramp=0.0):
    """Bytes per second of the `count` largest streams over the last `window` seconds before the job runs dry.

    The `ramp` is left out: so many seconds after all these streams are there.
    """
    series = acked(points)
    if len(series) < 3:
        raise Fail("too short to be sampled")
    largest = sorted(series[-1][1], key=series[-1][1].get)[-count:]
    whole = sum(series[-1][1][key] for key in largest)
    full = [(at, one) for at, one in series if all(key in one for key in largest)
            and sum(one[key] for key in largest) <= 0.97 * whole]
    full = [point for point in full if point[0] - full[0][0] >= ramp]
    if len(full) < 2:
        raise Fail(f"never {count} streams at once for long enough")
    last = full[-1]
    first = next(point for point in full if last[0] - point[0] <= window)
    seconds = last[0] - first[0]
    if seconds <= 0:
        raise Fail("too short to be sampled")
    return [(last[1][key] - first[1][key]) / seconds for key in largest], seconds


def jain(shares):
    """1 if all have the same, 1/n if one has all."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0


# ---- eight streams with CUBIC ----------------------------------------------------------------------------------------


def cooperative(run, scenario, entry):
    """renkei's streams and iperf3's in turn; BBR is forbidden to both."""
    bench, before = run.bench, output("sysctl", "-n", ALLOWED).strip()
    names = run.take_part(entry, ["renkei-8", "renkei-8-unpaced"])
    output("sysctl", "-qw", f"{ALLOWED}=reno cubic")
    try:
        for site in run.network.sites:
            output(*run.network.argv(site, ["sysctl", "-qw", "net.ipv4.tcp_congestion_control=cubic"]))
        for turn in range(bench.options.rounds):
            for name in [*names, "iperf3 -P 8"]:
                if bench.out_of_time():
                    return bench.results.cut(entry, turn)
                figures = one_sender(run, scenario, name, turn, entry)
                bench.results.add(entry, name, turn, figures)
                run.tell(turn, name, figures)
    finally:
        output("sysctl", "-qw", f"{ALLOWED}={before}")
        run.network.set_kernel(scenario.kernel)


def one_sender(run, scenario, name, turn, entry):
    """The rates of the streams of one job or of one iperf3."""
    ramp, window = 2 + 10 * scenario.path.rtt_ms / 1000, WINDOW * min(1, run.bench.options.scale)
    stage, seconds = run.stage, int((ramp + window) / 0.97) + 2
    sampler = Sampler(stage)
    sampler.start()
    try:
        if name.startswith("iperf3"):
            iperf.measure(stage, seconds, 0, STREAMS, "cubic", prefix=CUBIC_ONLY)
        else:
            done = run.copy(name, scenario, turn, entry)
            if done.error:
                return {"error": done.error}
    except Fail as error:
        return {"error": str(error)}
    finally:
        points = sampler.finish()
    try:
        found, seconds = rates(points, ramp=ramp)
    except Fail as error:
        return {"error": str(error)}
    controls = sorted({one["control"] for _, sockets in points for one in sockets.values() if one["acked"] > 1e6})
    return {"rates": [round(rate) for rate in sorted(found)], "window": round(seconds, 1), "control": " ".join(controls)}


def cooperative_section(entry):
    lines = ["", "| sender | streams | congestion control | slowest MB/s | fastest MB/s | slowest of fastest | total MB/s "
             "| of limit | over s |", "|---|--:|---|--:|--:|--:|--:|--:|--:|"]
    for name, runs in by_program(entry):
        middle = sorted(runs, key=lambda run: sum(run["rates"]))[len(runs) // 2]
        low, high, total = middle["rates"][0], middle["rates"][-1], sum(middle["rates"])
        share = statistics.median(run["rates"][0] / run["rates"][-1] for run in runs)
        lines.append(f"| {name} | {len(middle['rates'])} | {middle['control']} | {low / 1e6:.1f} | {high / 1e6:.1f} "
                     f"| {share:.2f} | {total / 1e6:.1f} | {total / entry['limit']:.2f} | {middle['window']:g} |")
    return [*lines, "", "Rates of the single streams at the sender (`ss`, bytes acknowledged) after a ramp of 2 s and 10 "
            "RTT, the round of median total; "
            "slowest of fastest is the median of all rounds. BBR is not allowed on the machine in this run, and the sender "
            "has no right to take it nevertheless. iperf3's streams know nothing of each other: the uncoordinated total."]


def by_program(entry):
    """Program to its good runs, in the order of appearance."""
    names = dict.fromkeys(run["program"] for run in entry["runs"])
    found = ((name, [run for run in entry["runs"] if run["program"] == name and "error" not in run]) for name in names)
    return [(name, runs) for name, runs in found if runs]


# ---- two jobs --------------------------------------------------------------------------------------------------------


def jobs(run, scenario, entry):
    """Two copies of the same file to two folders; the second begins later."""
    bench = run.bench
    for name in run.take_part(entry, ["renkei"]):
        for turn in range(bench.options.rounds):
            if not bench.out_of_time():
                figures = two_at_once(run, scenario, name, entry)
                bench.results.add(entry, name, turn, figures)
                run.tell(turn, name, figures)


def two_at_once(run, scenario, name, entry):
    groups = [Group(f"job-{number}") for number in (1, 2)]
    sampler, results, begins = Sampler(run.stage, 0.25), [None, None], [0.0, 0.0]
    with run.folder() as first, run.folder() as second:
        def work(number, folder):
            begins[number] = sampler.now()
            argv = [*groups[number].enter(), *run.command(name, scenario, folder, entry)]
            log = os.path.join(run.bench.work, f"job-{number}.log")
            results[number] = spend(argv, groups, run.network.wire_seconds, run.limit(2 * entry["bytes"]), log)
        threads = [threading.Thread(target=work, args=pair) for pair in enumerate((first, second))]
        sampler.start()
        seen = [set(), set()]
        for thread, wait in zip(threads, (LATER, 0)):
            thread.start()
            time.sleep(wait)
        while any(thread.is_alive() for thread in threads):
            for number, group in enumerate(groups):
                seen[number].update(group.processes())
            time.sleep(0.1)
        points = sampler.finish()
    for group in groups:
        group.close()
    return share_of_two(points, seen, begins, results)


def share_of_two(points, seen, begins, results):
    """Bytes per second of each over the time both ran, and Jain's index of the two."""
    bad = next((one.error for one in results if one.error), None)
    if bad:
        return {"error": bad}
    begin, end = max(begins), min(start + one.seconds for start, one in zip(begins, results))
    if end - begin < 1:
        return {"error": "the two did not run at the same time"}
    shares = []
    for processes in seen:
        series = acked(points, processes.__contains__)
        shares.append((total_at(series, end) - total_at(series, begin)) / (end - begin))
    return {"rates": [round(share) for share in shares], "jain": round(jain(shares), 4), "window": round(end - begin, 1),
            "seconds": [round(one.seconds, 2) for one in results]}


def jobs_section(entry):
    lines = ["", "| round | first MB/s | second MB/s | Jain index | both of limit | over s |", "|--:|--:|--:|--:|--:|--:|"]
    for run in entry["runs"]:
        if "error" not in run:
            first, second = run["rates"]
            lines.append(f"| {run['round'] + 1} | {first / 1e6:.1f} | {second / 1e6:.1f} | {run['jain']:.3f} "
                         f"| {(first + second) / entry['limit']:.2f} | {run['window']:g} |")
    return [*lines, "", f"The second job begins {LATER} s after the first. Bytes acknowledged at the sender (`ss`) over the "
            "time both run, the second's ramp included."]
