"""What a copy cannot do without: RAW, sendfile to pwrite over one stream; LOCAL, tar to tar with no network.

RAW ends when the file system is synced, as renkei does. LOCAL is there twice, with and without a sync at its end.
"""

import os

from bench.measure import Fail, first_line, output
from bench.peers.base import Peer, find

PORT = 7700
SOURCE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "raw", "raw.c")


class Raw(Peer):
    """bench/raw/raw.c: no digest, no encryption, one stream."""

    name = "RAW"
    port = PORT
    programs = ("cc",)
    durable = "syncfs"

    def version(self):
        return "bench/raw/raw.c, " + first_line("cc", "--version")

    def program(self, stage):
        path = os.path.join(stage.folder(self.name), "raw")
        if not os.path.exists(path):
            output("cc", "-O2", "-Wall", "-Wextra", "-o", path, SOURCE)
        return path

    def serve(self, stage):
        stage.spawn(stage.dst, [self.program(stage), "serve", str(PORT)], PORT, self.name)

    def copy(self, stage, item, target):
        return [self.program(stage), "send", stage.dst_address, str(PORT), target, os.path.join(stage.source, item)]


class Local(Peer):
    """tar to tar between the same two folders on one machine, then one sync of the file system."""

    name = "LOCAL"
    programs = ("tar",)
    durable = "sync -f"

    def version(self):
        return first_line("tar", "--version")

    def copy(self, stage, item, target):
        line = f"tar -C {stage.source} -c {item} | tar -C {target} -x && sync -f {target}"
        return ["bash", "-euo", "pipefail", "-c", line]


class LocalUnsynced(Local):
    """tar to tar between the same two folders on one machine, nothing synced."""

    name = "LOCAL-unsynced"
    durable = "no"

    def copy(self, stage, item, target):
        return ["bash", "-euo", "pipefail", "-c", f"tar -C {stage.source} -c {item} | tar -C {target} -x"]


PEERS = [Raw, Local, LocalUnsynced]
