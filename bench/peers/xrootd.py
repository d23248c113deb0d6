"""xrdcp to an xrootd server without authentication."""

import os

from bench.measure import first_line
from bench.peers.base import Peer, find, tree

PORT = 1094
CONF = """xrd.port {port}
all.export {target}
all.adminpath {folder}
all.pidpath {folder}
xrd.allow host *
"""


class Xrdcp(Peer):
    """Many streams and chunks in flight; four files of a tree at a time. The server will not run as root."""

    name = "xrdcp"
    port = PORT
    programs = ("xrdcp", "xrootd")

    def version(self):
        return first_line(find("xrdcp"), "--version")

    def serve(self, stage):
        folder = stage.folder(self.name)
        os.chmod(folder, 0o777)
        conf = stage.write(f"{folder}/xrootd.cfg", CONF.format(port=PORT, target=stage.target, folder=folder))
        command = [find("xrootd"), "-R", "nobody", "-n", "bench", "-c", conf, "-l", f"{folder}/log"]
        stage.spawn(stage.dst, command, PORT, self.name)

    def copy(self, stage, item, target):
        source, to = os.path.join(stage.source, item), f"root://{stage.dst_address}:{PORT}/{target}/"
        flags = ["--nopbar", "--silent", "--streams", "15"]
        if tree(stage, item):
            flags += ["--recursive", "--parallel", "4"]
        return ["env", "XRD_CPCHUNKSIZE=8388608", "XRD_CPPARALLELCHUNKS=16", "xrdcp", *flags, source, to]


PEERS = [Xrdcp]
