"""renkei itself: a client at the source, a PoP at the destination; and between two PoPs."""

import os
import shutil

from bench.measure import first_line, output
from bench.peers.base import Peer

PORT = 7512


def start_pop(stage, site, folder, storage):
    """Makes a PoP that serves one folder, starts it and logs the user in."""
    command = [stage.renkei, "--dir", folder]
    shutil.rmtree(folder, ignore_errors=True)
    name, address = os.path.basename(folder), stage.network.address(site)
    run = lambda *args: output(*stage.network.argv(site, [*command, *args]))  # noqa: E731
    run("init", "--site", name, "--listen", f"{address}:{PORT}")
    run("storage", "add", "data", storage)
    stage.spawn(site, [*command, "serve"], PORT, f"renkei-{name}")
    run("login")
    return command


class Renkei(Peer):
    """TLS 1.3, BLAKE3 of every file, durable when it ends; no flags."""

    name = "renkei"
    encrypted = True
    checks = "BLAKE3, AEAD"
    durable = "always"

    def missing(self):
        return None

    def version(self):
        return first_line(self.path, "--version")

    def serve(self, stage):
        self.path = stage.renkei
        start_pop(stage, stage.dst, os.path.join(stage.work, "there"), stage.target)

    def copy(self, stage, item, target):
        command = [stage.renkei, "--dir", os.path.join(stage.work, "there"), "cp", "-r"]
        return [*command, os.path.join(stage.source, item), f"there:/data/{os.path.basename(target)}/"]


PEERS = [Renkei]
