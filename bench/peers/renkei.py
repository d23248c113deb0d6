"""renkei itself: from a client at the source to a PoP at the destination, and between two PoPs."""

import functools
import getpass
import os
import shutil
import time

from bench.measure import Fail, first_line, kill, output
from bench.peers.base import Peer

PORT = 17512  # and the ports after it; not 7512, where a lab's own PoPs may be
# Takes from root the right to choose what the machine does not allow: with it gone, BBR cannot be picked if forbidden.
CUBIC_ONLY = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"]
# Ends all pacing in the process that has it in its environment; for measuring what pacing does.
UNPACED = "RENKEI_UNPACED"


@functools.cache
def contains(program, word):
    """Whether a program has a word in it."""
    with open(program, "rb") as file:
        return word.encode() in file.read()


class Pop:
    """A PoP at a site that serves one folder as the storage `data`."""

    def __init__(self, stage, site, name, port, storage, environment=()):
        self.stage, self.site, self.name, self.port = stage, site, name, port
        self.environment = list(environment)
        self.folder = os.path.join(stage.work, name)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.run("init", "--site", name, "--listen", f"{stage.network.address(site)}:{port}")
        self.run("storage", "add", "data", storage)

    def command(self, *args):
        return [self.stage.renkei, "--dir", self.folder, *args]

    def run(self, *args):
        return output(*self.stage.network.argv(self.site, self.command(*args)))

    def trust(self, other):
        """Trusts the other's site; this user may do there what the account of the same name may."""
        user, card = getpass.getuser(), os.path.join(self.stage.work, f"{other.name}.site")
        self.stage.write(card, other.run("trust", "export"))
        self.run("trust", "add", "--yes", card)
        self.run("map", "add", "--yes", f"{user}@{other.name}", user)

    def start(self):
        prefix = ["env", *self.environment] if self.environment else []
        self.stage.spawn(self.site, [*prefix, *self.command("serve")], self.port, f"renkei-{self.name}")

    def serve(self):
        self.start()
        self.run("login")

    def processes(self):
        """Those of this PoP's daemon."""
        found, group = [], self.stage.groups[self.site == self.stage.dst]
        for process in group.processes():
            try:
                with open(f"/proc/{process}/cmdline", "rb") as line:
                    words = line.read().split(b"\0")
            except OSError:
                continue
            if self.folder.encode() in words and b"serve" in words:
                found.append(process)
        return found

    def restart(self):
        """Ends the daemon and starts it anew: connections it kept are gone."""
        kill(self.processes(), 15)
        end = time.monotonic() + 10
        while self.processes():
            if time.monotonic() > end:
                raise Fail(f"{self.name}: the PoP does not end")
            time.sleep(0.02)
        self.start()


class Renkei(Peer):
    """A client at the source, a PoP at the destination; no flags."""

    name = "renkei"
    port = PORT
    encrypted = True
    checks = "BLAKE3, AEAD"
    durable = "always"
    limits = ()   # settings of the PoP, as environment
    prefix = ()   # before the client's command
    flags = ()

    def missing(self):
        return None

    def version(self):
        return first_line(self.pop.stage.renkei, "--version")

    def serve(self, stage):
        self.pop = Pop(stage, stage.dst, f"there{self.port - PORT or ''}", self.port, stage.target, self.limits)
        self.pop.serve()

    def copy(self, stage, item, target):
        source = os.path.join(stage.source, item)
        to = f"{self.pop.name}:/data/{os.path.basename(target)}/"
        return [*self.prefix, *self.pop.command("cp", "-r", *self.flags, source, to)]


class Background(Renkei):
    """As renkei, in the background class."""

    name = "renkei-background"
    port = PORT + 1
    flags = ("--class", "background")

    def lacks(self, stage):
        return None if "--class" in output(stage.renkei, "cp", "--help") else "this build has no background class"


class Sixteen(Renkei):
    """As renkei, at most 16 streams (`limits.max_streams = 16` at the PoP)."""

    name = "renkei-16"
    port = PORT + 2
    limits = ("RENKEI_LIMITS_MAX_STREAMS=16",)


class Unpaced(Renkei):
    """As renkei, with pacing off."""

    name = "renkei-unpaced"
    port = PORT + 3
    prefix = ("env", f"{UNPACED}=1")

    def lacks(self, stage):
        return None if contains(stage.renkei, UNPACED) else "this build cannot end its pacing"


class Eight(Renkei):
    """As renkei, at most 8 streams; a sender without the right to choose another congestion control."""

    name = "renkei-8"
    port = PORT + 4
    limits = ("RENKEI_LIMITS_MAX_STREAMS=8",)
    prefix = tuple(CUBIC_ONLY)


class EightUnpaced(Eight):
    """As renkei-8, with pacing off."""

    name = "renkei-8-unpaced"
    port = PORT + 5
    prefix = ("env", f"{UNPACED}=1", *CUBIC_ONLY)
    lacks = Unpaced.lacks


class Between(Renkei):
    """Between two PoPs, told to by a client at the source; both are started anew before each copy; no flags."""

    name = "renkei-pops"
    port = PORT + 6

    def serve(self, stage):
        number = self.port - PORT
        self.pop = Pop(stage, stage.src, f"near{number}", self.port, stage.source)
        self.far = Pop(stage, stage.dst, f"far{number}", self.port, stage.target)
        self.pop.trust(self.far)
        self.far.trust(self.pop)
        self.far.serve()
        self.pop.serve()

    def renew(self, stage):
        self.far.restart()
        self.pop.restart()

    def copy(self, stage, item, target):
        return self.pop.command("cp", "-r", f"{self.pop.name}:/data/{item}",
                                f"{self.far.name}:/data/{os.path.basename(target)}/")


class Again(Between):
    """As renkei-pops, the second of two jobs, begun right after the first has ended."""

    name = "renkei-pops-2nd"
    port = PORT + 7
    after_another = True


PEERS = [Renkei, Between, Again, Background, Sixteen, Eight, EightUnpaced, Unpaced]
