"""Runs a command that changes a volume where it is followed, and waits until the home has all of it, content too.

A folder that was made at the home is waited for first. `python3 arrive.py RENKEI DIR_OF_HOME DIR_OF_FOLLOWER VOLUME FOLDER COMMAND...`
"""

import json
import os
import subprocess
import sys
import time

PAUSE = 0.05


def standing(show):
    """What `renkei --json volume show` tells of how a volume stands; what it does not tell is not there."""
    done = subprocess.run(show, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return (json.loads(done.stdout or "{}").get("standing") or {}) if done.returncode == 0 else {}


def is_same(here, there):
    """Whether a follower, which stands so here, has all records of the home, and the home all changes."""
    followed, last = here.get("followed") or {}, there.get("records")
    return bool(followed.get("writes")) and here.get("records") == last and followed.get("pending") == 0


def main(renkei, home, far, volume, folder, *command):
    def look(folder):
        return standing([renkei, "--dir", folder, "--json", "volume", "show", volume])

    def has_all():
        here, there = look(far), look(home)
        return is_same(here, there) and not there.get("away")

    while not os.path.isdir(folder):
        time.sleep(PAUSE)
    subprocess.run(command, check=True)
    while not has_all():
        time.sleep(PAUSE)


if __name__ == "__main__":
    main(*sys.argv[1:])
