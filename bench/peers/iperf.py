"""iperf3, memory to memory: the check of what a path carries. Not a mover, so not among the peers."""

import json

from bench.measure import Fail, output
from bench.peers.base import find

PORT = 5201


def rate(stage, seconds, omit, streams=1):
    """Bits per second of payload that arrived, after `omit` seconds of ramp."""
    if not find("iperf3"):
        raise Fail("not installed: iperf3")
    if not stage.network.listens(stage.dst, PORT):
        stage.spawn(stage.dst, [find("iperf3"), "-s", "-p", str(PORT)], PORT, f"iperf3-{stage.dst}")
    command = ["iperf3", "-c", stage.dst_address, "-p", str(PORT), "-J", "-t", str(seconds), "-O", str(omit),
               "-P", str(streams)]
    return json.loads(output(*stage.argv(stage.src, command)))["end"]["sum_received"]["bits_per_second"]


def round_trip(stage, count=5):
    """Least round trip in ms, by ping: the first waits for the address of the other."""
    command = ["ping", "-n", "-q", "-c", str(count), "-i", "0.2", stage.dst_address]
    return float(output(*stage.argv(stage.src, command)).rsplit("=", 1)[1].split("/")[0])
