"""globus-url-copy to a globus-gridftp-server, without authentication, encryption or checksum."""

import os

from bench.measure import first_line
from bench.peers.base import Peer, find, tree

PORT = 2811


class Gridftp(Peer):
    """Eight streams for one file; for trees sixteen sessions with pipelined requests."""

    name = "gridftp"
    port = PORT
    programs = ("globus-url-copy", "globus-gridftp-server")

    def version(self):
        return first_line(find("globus-url-copy"), "-version")

    def serve(self, stage):
        command = ["env", f"GLOBUS_HOSTNAME={stage.dst_address}", find("globus-gridftp-server"), "-port", str(PORT), "-aa", "-anonymous-user", "root", "-allow-root",
                   "-disable-usage-stats", "-control-interface", stage.dst_address,
                   "-data-interface", stage.dst_address]
        stage.spawn(stage.dst, command, PORT, self.name)

    def copy(self, stage, item, target):
        source, to = os.path.join(stage.source, item), f"ftp://{stage.dst_address}:{PORT}{target}/"
        common = ["env", f"GLOBUS_HOSTNAME={stage.src_address}", "globus-url-copy", "-fast", "-bs", "4194304"]
        if stage.kernel != "stock":
            common += ["-tcp-bs", "67108864"]
        if tree(stage, item):
            return [*common, "-p", "1", "-cc", "16", "-pp", "-r", "-cd", f"file://{source}/", f"{to}{item}/"]
        return [*common, "-p", "8", f"file://{source}", to + item]


PEERS = [Gridftp]
