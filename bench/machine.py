"""What a reader needs to know about the machine and the programs to repeat a measurement."""

import datetime
import mmap
import os
import platform
import re
import subprocess

from bench.measure import Fail, first_line

REPOSITORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Settings of the whole machine, and those that each network namespace has for itself.
OF_MACHINE = ("net.core.default_qdisc", "net.core.netdev_max_backlog", "net.ipv4.tcp_mem", "vm.dirty_ratio",
              "vm.dirty_background_ratio")
OF_SITE = ("net.ipv4.tcp_slow_start_after_idle", "net.ipv4.tcp_moderate_rcvbuf", "net.ipv4.tcp_window_scaling")


def processor():
    with open("/proc/cpuinfo") as info:
        found = re.search(r"^model name\s*:\s*(.*)$", info.read(), re.M)
    return found.group(1) if found else platform.machine()


def file_system(path):
    return first_line("findmnt", "-n", "-o", "FSTYPE", "-T", path)


def sysctls(names, argv=lambda command: command):
    """Kernel settings; `argv` makes the command run where they are asked for."""
    return {name: first_line(*argv(["sysctl", "-n", name])) for name in names}


# What a run itself writes; it does not make the measured commit another one.
WRITTEN = (":!bench/results", ":!docs/benchmarks", ":!docs/benchmarks.md")


def git(*args):
    """Status and output of git in this repository."""
    done = subprocess.run(["git", "-C", REPOSITORY, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True, check=False)
    return done.returncode, done.stdout.strip()


def commit():
    """The commit this is, with `-dirty` if something else than results has been changed."""
    known, name = git("rev-parse", "--short", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", *WRITTEN)[1]
    return "unknown" if known else name + ("-dirty" if changed else "")


def is_older(measured, asked):
    """Whether a measured commit does not have the asked one among its ancestors."""
    if git("rev-parse", "--verify", f"{asked}^{{commit}}")[0]:
        raise Fail(f"no such commit: {asked}")
    return git("merge-base", "--is-ancestor", asked, measured.removesuffix("-dirty"))[0] != 0


def warm(part=0.6):
    """Writes to this part of the free memory once and gives it back: a virtual machine gets its memory page by page when it is
    first written to, which would count for whoever is measured first."""
    with open("/proc/meminfo") as info:
        free = int(re.search(r"^MemAvailable:\s*(\d+)", info.read(), re.M).group(1)) * 1024
    length = int(free * part) // mmap.PAGESIZE * mmap.PAGESIZE
    piece = bytes(1 << 22)
    with mmap.mmap(-1, length) as memory:
        for at in range(0, length, len(piece)):
            memory[at:at + len(piece)] = piece[:length - at]


def facts(work):
    """The machine, as it goes into a result file."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)
    return {"date": datetime.date.today().isoformat(), "commit": commit(), "kernel": platform.release(),
            "processor": processor(), "cores": os.cpu_count(), "memory_gib": round(memory),
            "file_system": file_system(work), "sysctls": sysctls(OF_MACHINE)}
