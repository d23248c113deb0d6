"""iperf3, memory to memory: the check of what a path carries, and the flow beside a copy. Not a mover, so not a peer."""

import json
import os
import subprocess
import time

from bench.measure import Fail, last_lines, output
from bench.peers.base import find

PORT = 5201


def rate(stage, seconds, omit, streams=1):
    """Bits per second of payload that arrived, after `omit` seconds of ramp."""
    return measure(stage, seconds, omit, streams)[0]


def measure(stage, seconds, omit, streams=1, control=None, alive=lambda: True, prefix=()):
    """Bits per second after the ramp, and for each second of it the rate at the sender and whether `alive` held."""
    if not find("iperf3"):
        raise Fail("not installed: iperf3")
    if not stage.network.listens(stage.dst, PORT):
        stage.spawn(stage.dst, [find("iperf3"), "-s", "-p", str(PORT)], PORT, f"iperf3-{stage.dst}")
    command = [*prefix, "iperf3", "-c", stage.dst_address, "-p", str(PORT), "-J", "-t", str(seconds), "-O", str(omit),
               "-P", str(streams), *(["-C", control] if control else [])]
    said, ended = watch(stage.argv(stage.src, command), os.path.join(stage.work, "iperf3.json"), alive)
    seen = [one["sum"]["bits_per_second"] for one in said["intervals"] if not one["sum"].get("omitted")]
    together = [(bits, ended is None or omit + number + 1 <= ended) for number, bits in enumerate(seen)]
    return said["end"]["sum_received"]["bits_per_second"], together


def watch(argv, path, alive):
    """Runs iperf3 to its end; returns what it says, and after how many seconds `alive` no longer held."""
    begin, ended = time.monotonic(), None
    with open(path, "wb") as out:
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        while child.poll() is None:
            if ended is None and not alive():
                ended = time.monotonic() - begin
            time.sleep(0.05)
    try:
        with open(path) as text:
            said = json.load(text)
    except ValueError:
        said = {"error": last_lines(path)}
    if child.returncode or "error" in said:
        raise Fail(f"iperf3: {said.get('error', child.returncode)}")
    return said, ended


def round_trip(stage, count=4):
    """Least round trip in ms, by ping: the first waits for the address of the other."""
    command = ["ping", "-n", "-q", "-c", str(count), "-i", "0.2", stage.dst_address]
    return float(output(*stage.argv(stage.src, command)).rsplit("=", 1)[1].split("/")[0])
