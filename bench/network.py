"""The two ends and what lies between: a lab of `renkei lab`, or two namespaces joined by a plain cable."""

import json
import os
import platform
import subprocess
import time

from bench.measure import Fail, output, process_seconds

LIMITS = ("net.core.rmem_max", "net.core.wmem_max")
# What both kinds have: no run learns from the ones before it.
FORGET = {"net.ipv4.tcp_no_metrics_save": "1"}
# What all programs get: limits that no path of the report reaches, and BBR.
TUNED = {"net.ipv4.tcp_rmem": "4096 131072 268435456", "net.ipv4.tcp_wmem": "4096 16384 268435456",
         "net.ipv4.tcp_congestion_control": "bbr", **FORGET}
# The kernel's own values on a machine of a few GB, for the rows marked stock.
STOCK = {"net.ipv4.tcp_rmem": "4096 131072 6291456", "net.ipv4.tcp_wmem": "4096 16384 4194304",
         "net.ipv4.tcp_congestion_control": "cubic", **FORGET}
LIMIT_OF = {"tuned": "268435456", "stock": "212992"}
# What a network namespace may choose; the machine's default is always there, CUBIC not always.
ALLOWED, AVAILABLE = "net.ipv4.tcp_allowed_congestion_control", "net.ipv4.tcp_available_congestion_control"


class Limits:
    """What only the whole machine has: socket limits and congestion controls, put back when the benchmark ends."""

    def __init__(self):
        self.before = {name: output("sysctl", "-n", name).strip() for name in (*LIMITS, ALLOWED)}
        known = output("sysctl", "-n", AVAILABLE).split()
        more = {kind["net.ipv4.tcp_congestion_control"] for kind in (TUNED, STOCK)}.intersection(known)
        output("sysctl", "-qw", f"{ALLOWED}={' '.join(sorted(more.union(self.before[ALLOWED].split())))}")

    def set(self, kind):
        for name in LIMITS:
            output("sysctl", "-qw", f"{name}={LIMIT_OF[kind]}")

    def close(self):
        for name, value in self.before.items():
            output("sysctl", "-qw", f"{name}={value}")


class Network:
    """Sites that reach each other by name; `argv` makes a command run at one of them."""

    def __init__(self):
        self.holders = {}

    def hold(self, sites):
        """A process at each site that does nothing: through it the site's counters are read."""
        for site in sites:
            self.holders[site] = subprocess.Popen(self.argv(site, ["sleep", "infinity"]), stdin=subprocess.DEVNULL,
                                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                                  start_new_session=True)

    def process(self, site):
        """A process inside the site's network namespace: the holder, or the last of its children."""
        process = self.holders[site].pid
        while True:
            with open(f"/proc/{process}/task/{process}/children") as children:
                inner = children.read().split()
            if not inner:
                return process
            process = int(inner[-1])

    def set_kernel(self, kind):
        values = TUNED if kind == "tuned" else STOCK
        for site in self.sites:
            pairs = [f"{name}={value}" for name, value in values.items()]
            output(*self.argv(site, ["sysctl", "-qw", *pairs]))

    def release(self):
        for holder in self.holders.values():
            try:
                os.killpg(holder.pid, 15)
                holder.wait(5)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                holder.kill()
                holder.wait()
        self.holders = {}

    def listens(self, site, port):
        """Whether someone at the site listens on a TCP port."""
        wanted = f":{port:04X}"
        for table in ("tcp", "tcp6"):
            with open(f"/proc/{self.process(site)}/net/{table}") as rows:
                if any(row.split()[1].endswith(wanted) and row.split()[3] == "0A" for row in rows.readlines()[1:]):
                    return True
        return False

    def wire_seconds(self):
        return 0.0

    def drops(self):
        """Packets the link has dropped so far: lost by rule, or for want of room in its queue."""
        return Drops()


class Drops:
    """Counters of the links, or the difference of two."""

    def __init__(self, lost=0, overflowed=0):
        self.lost, self.overflowed = lost, overflowed

    def __sub__(self, other):
        return Drops(self.lost - other.lost, self.overflowed - other.overflowed)

    def record(self):
        return vars(self)


class Cable(Network):
    """Two namespaces and a veth pair: no delay, no rate, no loss."""

    sites = ("one", "two")
    engine = "veth pair without delay"

    def __init__(self):
        super().__init__()
        self.names = {site: f"rkb{os.getpid()}-{site}" for site in self.sites}
        try:
            self.make()
            self.hold(self.sites)
        except BaseException:
            self.close()
            raise

    def make(self):
        one, two = self.names.values()
        for number, name in enumerate((one, two), 1):
            output("ip", "netns", "add", name)
            os.makedirs(f"/etc/netns/{name}", exist_ok=True)
            with open(f"/etc/netns/{name}/hosts", "w") as hosts:
                hosts.write("127.0.0.1 localhost\n10.213.0.1 one\n10.213.0.2 two\n")
                hosts.write(f"10.213.0.{number} {platform.node()}\n")
        output("ip", "-n", one, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", two)
        for number, name in enumerate((one, two), 1):
            output("ip", "-n", name, "addr", "add", f"10.213.0.{number}/24", "dev", "eth0")
            output("ip", "-n", name, "link", "set", "eth0", "up")
            output("ip", "-n", name, "link", "set", "lo", "up")

    def argv(self, site, command):
        return ["ip", "netns", "exec", self.names[site], *command]

    def address(self, site):
        return f"10.213.0.{self.sites.index(site) + 1}"

    def close(self):
        self.release()
        for name in self.names.values():
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)
            try:
                os.remove(f"/etc/netns/{name}/hosts")
                os.rmdir(f"/etc/netns/{name}")
            except FileNotFoundError:
                pass


class Lab(Network):
    """Sites of `renkei lab`; the program that holds the wire is counted apart."""

    def __init__(self, renkei, file, sites, environment=None):
        super().__init__()
        self.renkei, self.sites, self.name = renkei, tuple(sites), f"bench{os.getpid()}"
        self.environment = environment
        self.engine = "renkei lab"
        self.call("up", "--engine", "wire", file)
        try:
            self.hold(self.sites)
            self.addresses = {site: self.resolve(site) for site in self.sites}
            self.wire = self.find_wire()
        except BaseException:
            self.close()
            raise

    def call(self, verb, *args):
        return output(self.renkei, "lab", verb, "--lab", self.name, *args)

    def argv(self, site, command):
        return [self.renkei, "lab", "run", "--lab", self.name, site, "--", *command]

    def resolve(self, site):
        """The address under which the others know a site."""
        other = next(other for other in self.sites if other != site)
        return output(*self.argv(other, ["getent", "ahostsv4", site])).split()[0]

    def find_wire(self):
        """The process that holds the wire: `renkei lab emulate`, with this lab's name."""
        found = []
        for process in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{process}/cmdline", "rb") as line:
                    words = line.read().split(b"\0")
            except OSError:
                continue
            if b"emulate" in words and any(self.name.encode() in word for word in words):
                found.append(int(process))
        return found

    def address(self, site):
        return self.addresses[site]

    def drops(self):
        shown = subprocess.run([self.renkei, "--json", "lab", "show", "--lab", self.name], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False).stdout
        links = json.loads(shown or "{}").get("links", [])
        return Drops(sum(link["lost"] for link in links), sum(link["overflowed"] for link in links))

    def wire_seconds(self):
        return sum(process_seconds(process) for process in self.wire)

    def close(self):
        self.release()
        self.call("down")
