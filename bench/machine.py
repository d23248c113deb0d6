"""What a reader needs to know about the machine and the programs to repeat a measurement."""

import datetime
import os
import platform
import re

from bench.measure import first_line

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


def commit():
    return first_line("git", "-C", REPOSITORY, "describe", "--always", "--dirty")


def facts(work):
    """The machine, as it goes into a result file."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)
    return {"date": datetime.date.today().isoformat(), "commit": commit(), "kernel": platform.release(),
            "processor": processor(), "cores": os.cpu_count(), "memory_gib": round(memory),
            "file_system": file_system(work), "sysctls": sysctls(OF_MACHINE)}
