"""A volume at one end of the path, and a site at the other that follows it and may change it."""

import getpass
import os
import time

from bench import arrive
from bench.measure import Fail
from bench.peers.renkei import Pop

WITHIN = 120  # seconds for a site to be up to date


class Followed:
    """The home at the destination, where the volume is in place of a folder, and the follower at the source."""

    def __init__(self, stage, volume, port, folder, far_storage):
        self.stage, self.volume = stage, volume
        storage, name = os.path.split(folder)
        self.home = Pop(stage, stage.dst, f"{volume}home", port, storage)
        self.far = Pop(stage, stage.src, f"{volume}far", port, far_storage)
        self.home.trust(self.far)
        self.far.trust(self.home)
        self.home.serve()
        self.far.serve()
        self.home.run("volume", "create", volume, "--storage", "data", "--in-place", name, "--account",
                      getpass.getuser())
        for who in (self.far.name, f"*@{self.home.name}"):
            self.home.run("volume", "grant", volume, who, "write")

    def follow(self):
        self.far.run("volume", "subscribe", self.volume, "--from", self.home.name, "--storage", "data", "--account",
                     getpass.getuser())
        self.far.run("volume", "grant", self.volume, f"*@{self.far.name}", "write")

    def standing(self, pop):
        """How the volume stands at a site; what the PoP does not tell is not there."""
        show = pop.command("--json", "volume", "show", self.volume)
        return arrive.standing(self.stage.network.argv(pop.site, show))

    def followed(self):
        return self.standing(self.far).get("followed") or {}

    def await_that(self, is_so, within=WITHIN):
        """Waits until something is so; the time it was seen."""
        end = time.monotonic() + within
        while not is_so():
            if time.monotonic() > end:
                raise Fail(f"not so within {within} s: {self.standing(self.far)} {self.standing(self.home)}")
            time.sleep(0.02)
        return time.monotonic()

    def is_same(self):
        """Whether the follower has all records of the home, and the home all changes."""
        return arrive.is_same(self.standing(self.far), self.standing(self.home))

    def await_writing(self):
        """Waits until the follower is up to date and takes changes."""
        self.await_that(self.is_same)

        def is_made():
            try:
                self.far.run("mkdir", f"/{self.volume}/ready")
                return True
            except Fail:
                return False
        self.await_that(is_made)
        self.far.run("rm", "-r", f"/{self.volume}/ready")
        self.await_that(self.is_same)
