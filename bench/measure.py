"""Runs programs in groups whose CPU time is counted, and stops them again.

A group is a control group (version 2, or cpuacct of version 1): every process a program starts is counted, also those
that have ended or have left for another session. Only processes of the group itself are ever ended.
"""

import os
import shlex
import signal
import subprocess
import threading
import time

TICKS = os.sysconf("SC_CLK_TCK")


class Fail(Exception):
    """Something that ends the benchmark, with a message for the user."""


def mounted(kind, option=None):
    """Where a file system of this kind is mounted, or None."""
    with open("/proc/mounts") as mounts:
        for line in mounts:
            fields = line.split()
            if fields[2] == kind and (option is None or option in fields[3].split(",")):
                return fields[1]
    return None


def kill(processes, number=signal.SIGKILL):
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            pass


class Group:
    """One control group; `enter` is an argv prefix that puts a command into it."""

    def __init__(self, name):
        self.unified = mounted("cgroup2")
        root = self.unified or mounted("cgroup", "cpuacct")
        if not root:
            raise Fail("no cgroup file system is mounted, CPU time cannot be counted")
        self.path = os.path.join(root, f"renkei-bench-{os.getpid()}-{name}")
        os.mkdir(self.path)

    def enter(self):
        script = 'echo $$ > "$0" && exec "$@"'
        return ["sh", "-c", script, os.path.join(self.path, "cgroup.procs")]

    def seconds(self):
        """User and system seconds used so far."""
        if not self.unified:
            with open(os.path.join(self.path, "cpuacct.usage")) as usage:
                return int(usage.read()) / 1e9
        with open(os.path.join(self.path, "cpu.stat")) as stat:
            return int(dict(line.split() for line in stat)["usage_usec"]) / 1e6

    def processes(self):
        with open(os.path.join(self.path, "cgroup.procs")) as procs:
            return [int(line) for line in procs]

    def stop(self):
        """Ends every process of the group: asks first, then kills."""
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGKILL):
            kill(self.processes(), number)
            end = time.monotonic() + 2
            while self.processes() and time.monotonic() < end:
                time.sleep(0.02)
            if not self.processes():
                return

    def close(self):
        self.stop()
        try:
            os.rmdir(self.path)
        except OSError:
            pass


def machine_seconds():
    """Busy seconds of all cores since boot: user, nice, system, irq, softirq."""
    with open("/proc/stat") as stat:
        fields = [int(field) for field in stat.readline().split()[1:]]
    return (fields[0] + fields[1] + fields[2] + fields[5] + fields[6]) / TICKS


def stolen_seconds():
    """Seconds that other virtual machines took from all cores since boot."""
    with open("/proc/stat") as stat:
        return int(stat.readline().split()[8]) / TICKS


def process_seconds(process):
    """User and system seconds a process has used, threads that ended included."""
    with open(f"/proc/{process}/stat", "rb") as stat:
        fields = stat.read().rsplit(b")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def devices(process):
    """The counters of each device of the network namespace of a process but the loopback, as /proc/net/dev has them."""
    with open(f"/proc/{process}/net/dev") as dev:
        rows = [line.split(":", 1) for line in dev.readlines()[2:]]
    return [[int(count) for count in row[1].split()] for row in rows if row[0].strip() != "lo"]


def received(process):
    """Bytes that have reached the network namespace of a process, headers included."""
    return sum(counts[0] for counts in devices(process))


def handed(process):
    """Bytes and packets that a network namespace has handed to its devices; many segments may be one such packet."""
    found = devices(process)
    return sum(counts[8] for counts in found), sum(counts[9] for counts in found)


def resent(process):
    """TCP segments that the network namespace of a process has sent again."""
    with open(f"/proc/{process}/net/snmp") as snmp:
        names, values = [line.split()[1:] for line in snmp if line.startswith("Tcp:")]
    return int(dict(zip(names, values))["RetransSegs"])


def own_memory(process):
    """Bytes of a process that no file backs; 0 if it has ended."""
    try:
        with open(f"/proc/{process}/status") as status:
            fields = dict(line.split(":", 1) for line in status)
    except OSError:
        return 0
    return sum(int(fields.get(name, "0 kB").split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))


def socket_memory():
    """Bytes the kernel holds for all TCP sockets of the machine."""
    with open("/proc/net/sockstat") as stat:
        words = next(line for line in stat if line.startswith("TCP:")).split()
    return int(words[words.index("mem") + 1]) * os.sysconf("SC_PAGE_SIZE")


class Trace(threading.Thread):
    """Samples the bytes that reach a network namespace, and the memory of all processes and sockets of both ends."""

    def __init__(self, process, groups, every=0.1):
        super().__init__(daemon=True)
        self.process, self.groups, self.every = process, groups, every
        self.points, self.peak, self.over = [(0.0, 0)], 0, threading.Event()

    def memory(self):
        return socket_memory() + sum(own_memory(process) for group in self.groups for process in group.processes())

    def run(self):
        begin, first, idle = time.monotonic(), received(self.process), self.memory()
        looked, last = begin, False
        while not last:
            last, now = self.over.wait(self.every), time.monotonic()
            self.points.append((round(now - begin, 3), received(self.process) - first))
            if now - looked >= 0.2:
                self.peak, looked = max(self.peak, self.memory() - idle), now

    def finish(self):
        self.over.set()
        self.join()


def part_rate(points, size, low, high):
    """Bytes of the file per second between two parts of it, from counters that also have headers and resent bytes.

    Those are taken off in equal shares. What is resent early, when a stream overshoots, thus lowers the rate found.
    """
    whole = points[-1][1]
    if not whole:
        return 0.0

    def reached(part):
        for (before, less), (after, more) in zip(points, points[1:]):
            if more >= part * whole > less:
                return before + (after - before) * (part * whole - less) / (more - less)
        return points[-1][0]
    took = reached(high) - reached(low)
    return (high - low) * size / took if took > 0 else 0.0


def middle_rate(points, size):
    """Over the middle 60 % of the bytes: after the ramp and before the end."""
    return part_rate(points, size, 0.2, 0.8)


def largest_window(points, size, seconds=1.0):
    """The most bytes of the file that came within so many seconds, per second."""
    whole, most, first = points[-1][1], 0.0, 0
    for at, count in points:
        while points[first + 1][0] <= at - seconds:
            first += 1
        (before, less), (after, more) = points[first], points[first + 1]
        if at - seconds >= before:
            less += (more - less) * (at - seconds - before) / (after - before)
        most = max(most, count - less)
    return most / seconds * size / whole if whole else 0.0


class Run:
    """What one command took: `seconds`, CPU of both ends, of the machine, of the wire, and what others had of it meanwhile
    (`steal`; `load` is the machine's before); `error` if it failed."""

    def __init__(self):
        self.seconds = self.cpu = self.machine = self.wire = self.steal = 0.0
        self.load = os.getloadavg()[0]
        self.sync_seconds, self.sync_machine, self.error, self.trace, self.memory = 0.0, 0.0, None, None, None

    def record(self):
        plain = {key: value.record() if hasattr(value, "record") else value for key, value in vars(self).items()}
        return {key: round(value, 4) if isinstance(value, float) else value
                for key, value in plain.items() if value is not None}


def last_lines(path, size=600):
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - size))
        return " ".join(file.read().decode(errors="replace").split())[-size:]


def spend(argv, groups, wire_seconds, limit, log, trace=None):
    """Runs a command to its end or the time limit; the groups' servers work for it meanwhile."""
    run, servers = Run(), {process for group in groups for process in group.processes()}
    cpu = sum(group.seconds() for group in groups)
    wire, machine, stolen = wire_seconds(), machine_seconds(), stolen_seconds()
    with open(log, "wb") as out:
        if trace:
            trace.start()
        begin = time.monotonic()
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        over = threading.Event()
        timer = threading.Timer(limit, lambda: (over.set(), os.killpg(child.pid, signal.SIGKILL)))
        timer.start()
        try:
            # Without a time limit of its own: with one, Python looks every 50 ms only.
            status = child.wait()
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise
        finally:
            timer.cancel()
        run.seconds = time.monotonic() - begin
    run.machine, run.wire = machine_seconds() - machine, wire_seconds() - wire
    run.steal = stolen_seconds() - stolen
    run.cpu = sum(group.seconds() for group in groups) - cpu
    if trace:
        trace.finish()
        run.trace, run.memory = trace.points, trace.peak
    if over.is_set():
        kill({process for group in groups for process in group.processes()} - servers)
        run.error = f"stopped after the limit of {limit:.0f} s; {last_lines(log, 200)}".rstrip("; ")
    elif status:
        run.error = f"status {status}: {last_lines(log)}"
    return run


def output(*argv, **more):
    """What a command prints, both streams; Fail if it fails."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", check=False, **more)
    if done.returncode:
        raise Fail(f"{shlex.join(argv)}: status {done.returncode}: {done.stdout.strip()[-1500:]}")
    return done.stdout


def first_line(*argv):
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, errors="replace", check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    lines = done.stdout.strip().splitlines()
    return lines[0].strip() if lines else "unknown"
