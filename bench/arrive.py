"""Runs a command that changes a volume where it is followed, and waits until the home has all of it, content too.

A folder that was made at the home is waited for first. `python3 arrive.py RENKEI DIR_OF_HOME DIR_OF_FOLLOWER VOLUME FOLDER COMMAND...`
"""

import json
import os
import subprocess
import sys
import time

PAUSE = 0.05


def standing(renkei, folder, volume):
    done = subprocess.run([renkei, "--dir", folder, "--json", "volume", "show", volume], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)["standing"]


def has_all(renkei, home, far, volume):
    followed = standing(renkei, far, volume)
    if followed["followed"]["pending"]:
        return False
    there = standing(renkei, home, volume)
    return followed["records"] == there["records"] and not there.get("away")


def main(renkei, home, far, volume, folder, *command):
    while not os.path.isdir(folder):
        time.sleep(PAUSE)
    subprocess.run(command, check=True)
    while not has_all(renkei, home, far, volume):
        time.sleep(PAUSE)


if __name__ == "__main__":
    main(*sys.argv[1:])
