"""renkei itself: from a client at the source to a PoP at the destination, and between two PoPs."""

import getpass
import os
import shutil

from bench.measure import first_line, output
from bench.peers.base import Peer

PORT, BETWEEN_PORT = 17512, 17513  # not 7512, where a lab's own PoPs may be


class Pop:
    """A PoP at a site that serves one folder as the storage `data`."""

    def __init__(self, stage, site, name, port, storage):
        self.stage, self.site, self.name, self.port = stage, site, name, port
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
        self.run("map", "add", f"{user}@{other.name}", user)

    def serve(self):
        self.stage.spawn(self.site, self.command("serve"), self.port, f"renkei-{self.name}")
        self.run("login")


class Renkei(Peer):
    """A client at the source, a PoP at the destination; no flags."""

    name = "renkei"
    port = PORT
    encrypted = True
    checks = "BLAKE3, AEAD"
    durable = "always"

    def missing(self):
        return None

    def version(self):
        return first_line(self.pop.stage.renkei, "--version")

    def serve(self, stage):
        self.pop = Pop(stage, stage.dst, "there", PORT, stage.target)
        self.pop.serve()

    def copy(self, stage, item, target):
        source = os.path.join(stage.source, item)
        return self.pop.command("cp", "-r", source, f"there:/data/{os.path.basename(target)}/")


class RenkeiBetween(Renkei):
    """Between two PoPs, told to by a client at the source; no flags."""

    name = "renkei-pops"
    port = BETWEEN_PORT

    def serve(self, stage):
        self.pop = Pop(stage, stage.src, "near", BETWEEN_PORT, stage.source)
        far = Pop(stage, stage.dst, "far", BETWEEN_PORT, stage.target)
        self.pop.trust(far)
        far.trust(self.pop)
        far.serve()
        self.pop.serve()

    def copy(self, stage, item, target):
        return self.pop.command("cp", "-r", f"near:/data/{item}", f"far:/data/{os.path.basename(target)}/")


PEERS = [Renkei, RenkeiBetween]
