"""What a peer is: how it is installed, served and told to copy."""

import os
import shlex
import shutil
import subprocess
import time

from bench.data import digests
from bench.measure import Fail, first_line

CACHE = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.environ.get("HOME") or "/var/tmp", ".cache")
TOOLS = os.path.join(CACHE, "renkei-tools", "bin")


def find(program):
    """The full path of a program, or None."""
    places = [os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", "/sbin", TOOLS]
    return shutil.which(program, path=os.pathsep.join(places))


class Stage:
    """Where a copy happens: two sites of a network, the source and target folders, the groups that are counted.

    With the `stock` kernel settings a program must not ask for socket buffers: the low limits would then hold instead
    of what the kernel finds by itself.
    """

    def __init__(self, network, src, dst, source, target, work, groups, renkei, kernel="tuned"):
        self.network, self.src, self.dst = network, src, dst
        self.source, self.target, self.work = source, target, work
        self.groups, self.renkei, self.kernel = groups, renkei, kernel
        self.dst_address, self.src_address = network.address(dst), network.address(src)

    def turned(self):
        """The same stage with its two sites exchanged: for servers at the source."""
        groups = self.groups[::-1]
        return Stage(self.network, self.dst, self.src, self.target, self.source, os.path.join(self.work, "turned"), groups,
                     self.renkei, self.kernel)

    def argv(self, site, command):
        return [*self.groups[site == self.dst].enter(), *self.network.argv(site, command)]

    def spawn(self, site, command, port, name, within=20):
        """Starts a server at a site and waits until it listens."""
        log = os.path.join(self.work, f"{name}.log")
        with open(log, "ab") as out:
            server = subprocess.Popen(self.argv(site, command), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                      process_group=0)
        end = time.monotonic() + within
        while not self.network.listens(site, port):
            if server.poll() is not None or time.monotonic() > end:
                with open(log, errors="replace") as text:
                    raise Fail(f"{name} does not listen on port {port}: {text.read()[-800:].strip()}")
            time.sleep(0.05)

    def folder(self, name):
        """An own folder for a peer's keys and configuration."""
        path = os.path.join(self.work, name)
        os.makedirs(path, mode=0o755, exist_ok=True)
        return path

    def write(self, path, text, mode=0o644):
        with open(path, "w") as out:
            out.write(text)
        os.chmod(path, mode)
        return path


class Peer:
    """One way to copy. Subclasses say how; the words below go into the report."""

    name = ""
    programs = ()         # must be installed
    port = None           # where its server listens
    direction = "push"    # push: the client is at the source; pull: at the destination
    encrypted = False     # content is protected on the way
    checks = "no"         # what end-to-end check of the content is part of the copy
    after_another = False # what counts is the second of two copies, one right after the other
    durable = "no"        # how the copy is on stable storage when the command ends

    def missing(self):
        """What is not installed, or None."""
        absent = [program for program in self.programs if not find(program)]
        return f"not installed: {', '.join(absent)}" if absent else None

    def lacks(self, stage):
        """What the program itself cannot do yet, or None."""

    def version(self):
        return first_line(find(self.programs[0]), "--version")

    def serve(self, stage):
        """Starts what has to run before the first copy."""

    def renew(self, stage):
        """Forgets what earlier copies left, so that no round profits from the one before."""

    def copy(self, stage, item, target):
        """The argv that copies `item` (a file or tree below the source) into the folder `target`."""
        raise NotImplementedError

    def found(self, stage, item, target):
        """Size and digest of each file that arrived, by name."""
        return digests(os.path.join(target, item))

    def clear(self, stage, target):
        """Takes away what is not in the folder `target`."""

    def end(self, stage):
        """Takes away what the peer left outside the stage's folders; its servers have ended."""

    def serves(self, stage):
        """Whether its server is still there."""
        return self.port is None or stage.network.listens(stage.dst if self.direction == "push" else stage.src, self.port)

    def client(self, stage):
        return stage.src if self.direction == "push" else stage.dst

    def shown(self, stage, item, target):
        """The command as the report shows it, without the paths of this machine."""
        text = shlex.join(self.copy(stage, item, target))
        places = [(target, "/DST/RUN"), (stage.target, "/DST"), (stage.source, "/SRC"), (stage.work, "/CONF"),
                  (TOOLS + "/", ""), (stage.renkei, "renkei"),
                  (stage.dst_address, "dst"), (stage.src_address, "src"), (os.path.basename(target), "RUN")]
        for real, word in places:
            text = text.replace(real, word)
        return text


def tree(stage, item):
    """Whether the item is a tree."""
    return os.path.isdir(os.path.join(stage.source, item))
