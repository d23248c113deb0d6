"""rclone's newest release, with its own servers."""

import os

from bench.measure import first_line
from bench.peers.base import Peer, find, tree

PORT = 8780
FLAGS = ["--config", "/dev/null", "-q", "--webdav-pacer-min-sleep", "0", "--multi-thread-streams", "16",
         "--multi-thread-cutoff", "64M", "--multi-thread-chunk-size", "16M", "--buffer-size", "64M"]


class Rclone(Peer):
    """Pulls from `rclone serve webdav` at the source: WebDAV lists sizes and times, and allows ranges."""

    name = "rclone"
    port = PORT
    programs = ("rclone",)
    direction = "pull"
    checks = "sizes"

    def version(self):
        return first_line(find("rclone"), "version")

    def serve(self, stage):
        command = [find("rclone"), "serve", "webdav", stage.source, "--addr", f"{stage.src_address}:{PORT}", "--read-only",
                   "--config", "/dev/null"]
        stage.spawn(stage.src, command, PORT, self.name)

    def copy(self, stage, item, target):
        remote = f":webdav,vendor=rclone,url='http://{stage.src_address}:{PORT}':{item}"
        to = os.path.join(target, item) if tree(stage, item) else target
        flags = ["--transfers", "64", "--checkers", "64"] if tree(stage, item) else ["--transfers", "16"]
        return [find("rclone"), "copy", *FLAGS, *flags, remote, to]


PEERS = [Rclone]
