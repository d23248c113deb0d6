"""rsync as a daemon, and parallel over the network without encryption."""

import os

from bench.peers.base import Peer, find

PORT = 8730


class Rsync(Peer):
    """A daemon at the destination, one connection, whole files in place."""

    name = "rsync"
    port = PORT
    programs = ("rsync",)
    checks = "MD5 or xxh of each file"

    def serve(self, stage):
        folder = stage.folder(self.name)
        text = (f"port = {PORT}\nuse chroot = no\nuid = 0\ngid = 0\nread only = no\nlog file = {folder}/log\n"
                f"pid file = {folder}/pid\n[dst]\npath = {stage.target}\n")
        conf = stage.write(os.path.join(folder, "rsyncd.conf"), text)
        if os.path.exists(f"{folder}/pid"):
            os.remove(f"{folder}/pid")
        stage.spawn(stage.dst, [find("rsync"), "--daemon", "--no-detach", f"--config={conf}"], PORT, self.name)

    def copy(self, stage, item, target):
        to = f"rsync://{stage.dst_address}:{PORT}/dst/{os.path.basename(target)}/"
        return ["rsync", "-a", "--whole-file", "--inplace", os.path.join(stage.source, item), to]


PEERS = [Rsync]
