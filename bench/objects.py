"""Objects over S3: many small ones by many clients, and lists of a million keys.

Every server has the client of bench/s3_client.py, whose work is the same for all; it runs on the same cores. The other servers
are idle meanwhile.
"""

import json
import os
import statistics
import sys
import time

from bench.measure import Fail, output
from bench.peers.s3 import BUCKET
from bench.streams import by_program

CLIENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "s3_client.py")
COUNT, BYTES, CLIENTS = 10_000, 10_000, 32
KEYS, A_FOLDER = 1_000_000, 1000
SETTLED = 3  # seconds after which the names of a directory are remembered
# The trees that are listed: files in a folder, and what they are called.
TREES = {"folders": (A_FOLDER, "1,000 folders of 1,000"), "flat": (KEYS, "one folder of 1,000,000")}


def client(run, peer, *words):
    """Runs the client at the source; what it found."""
    access, secret = peer.keys
    command = ["env", f"S3_ACCESS={access}", f"S3_SECRET={secret}", sys.executable, CLIENT, words[0], peer.address(), BUCKET,
               *map(str, words[1:])]
    try:
        shown = output(*run.grouped(peer.name, run.network.argv(run.stage.src, command)))
    except Fail as error:
        raise Fail(str(error).replace(secret, "SECRET")) from None
    return json.loads(shown.splitlines()[-1])


def told(run, entry, peer, what):
    run.bench.results.program(entry, peer, peer.shown(run.stage, what, None))


def small(run, scenario, entry):
    """PUT of small objects by many clients, then GET of the same."""
    bench = run.bench
    count = int(COUNT * min(bench.options.scale, 1))
    entry["data"], entry["files"], entry["bytes"] = "objects of 10 KB", count, count * BYTES
    names = run.take_part(entry, scenario.peers)
    for name in names:
        told(run, entry, bench.peers[name], "put")
    for turn in range(bench.options.rounds):
        for place in range(len(names)):
            if bench.out_of_time():
                return bench.results.cut(entry, turn)
            name = names[(turn + place) % len(names)]
            try:
                figures = one_small(run, bench.peers[name], count, f"round-{turn}")
            except Fail as error:
                figures = {"error": str(error)}
            bench.results.add(entry, name, turn, figures)
            run.tell(turn, name, figures)


def one_small(run, peer, count, folder):
    client(run, peer, "make")
    os.sync()
    put = client(run, peer, "put", count, BYTES, CLIENTS, folder)
    got = client(run, peer, "get", count, BYTES, CLIENTS, folder)
    return {**{f"put_{key}": value for key, value in put.items()}, **{f"get_{key}": value for key, value in got.items()}}


def small_section(entry):
    lines = ["", "| program | PUT/s | least, most | of best peer | PUT p50, ms | p99, ms | GET/s | p99, ms | durable by |",
             "|---|--:|---|--:|--:|--:|--:|--:|---|"]
    found = dict(by_program(entry))
    rates = {name: middle(runs, "put_rate") for name, runs in found.items()}
    best = max((rate for name, rate in rates.items() if not name.startswith("renkei")), default=None)
    for name, runs in sorted(found.items(), key=lambda one: -rates[one[0]]):
        each = sorted(run["put_rate"] for run in runs)
        share = f"{rates[name] / best:.2f}" if best and name.startswith("renkei") else ""
        durable = entry["programs"].get(name, {}).get("durable", "no")
        lines.append(f"| {name} | {rates[name]:,.0f} | {each[0]:,.0f}, {each[-1]:,.0f} | {share} | {middle(runs, 'put_p50'):.1f} "
                     f"| {middle(runs, 'put_p99'):.1f} | {middle(runs, 'get_rate'):,.0f} | {middle(runs, 'get_p99'):.1f} "
                     f"| {durable} |")
    return [*lines, "", f"{entry['files']:,} objects of 10 KB by {CLIENTS} clients, one TLS connection each, new names in a new prefix; "
            "server and clients share the cores. `content only`: an answered object is on stable storage, its name may not be."]


def against_peers(entry, key):
    """A figure of renkei over that of the best other server."""
    found = {name: middle(runs, key) for name, runs in by_program(entry)} if entry else {}
    best = max((value for name, value in found.items() if not name.startswith("renkei")), default=None)
    return found["renkei-s3"] / best if best and "renkei-s3" in found else None


def middle(runs, key):
    return statistics.median(run[key] for run in runs)


def keys(run, scenario, entry):
    """Lists of a million keys in two shapes: the first page and all of them, and the memory of the server."""
    bench = run.bench
    count = int(KEYS * min(bench.options.scale, 1))
    entry["data"], entry["files"] = "empty objects", count
    names = run.take_part(entry, scenario.peers)
    for shape, (in_folder, title) in TREES.items():
        for name in names:
            peer = bench.peers[name]
            told(run, entry, peer, "list")
            make_tree(os.path.join(peer.bucket(), shape), count, in_folder)
            for turn in range(bench.options.rounds):
                if bench.out_of_time():
                    return bench.results.cut(entry, turn)
                try:
                    figures = one_list(run, peer, os.path.join(peer.bucket(), shape), count)
                except Fail as error:
                    figures = {"error": str(error)}
                bench.results.add(entry, f"{name}, {title}", turn, figures)
                run.tell(turn, f"{name}, {title}", figures)
            # Its removal would slow what is measured next.
            os.rename(os.path.join(peer.bucket(), shape), os.path.join(run.stage.target, f"gone-{name}-{shape}"))


def one_list(run, peer, tree, count):
    """First pages alone, then all: of directories that were changed a moment ago, and of such as were listed since."""
    before = memory(peer)
    for folder, _, _ in os.walk(tree):
        touch(folder)
    first = client(run, peer, "list", 1)
    time.sleep(SETTLED)
    client(run, peer, "list", 1)
    again = client(run, peer, "list", 1)
    whole = client(run, peer, "list", 0)
    if whole["keys"] < count:
        raise Fail(f"{whole['keys']} of {count} keys were listed")
    return {"cold_ms": first["first_ms"], "first_ms": again["first_ms"], "page_ms": whole["page_ms"], "seconds": whole["seconds"],
            "mb": [before, memory(peer)]}


def memory(peer):
    """MB of the server that no file backs."""
    total = 0
    for process in peer.processes():
        try:
            with open(f"/proc/{process}/status") as status:
                rows = dict(line.split(":", 1) for line in status)
        except OSError:
            continue
        total += int(rows.get("RssAnon", "0 kB").split()[0]) / 1000
    return round(total, 1)


def make_tree(folder, count, in_folder):
    """Empty files, so many in each folder."""
    for number in range(count):
        if number % in_folder == 0:
            below = os.path.join(folder, f"run-{number // in_folder:04}")
            os.makedirs(below)
        os.close(os.open(os.path.join(below, f"sample-{number:07}"), os.O_WRONLY | os.O_CREAT, 0o644))


def touch(folder):
    """Changes the names of a folder, and back."""
    path = os.path.join(folder, "touched")
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))
    os.remove(path)


def keys_section(entry):
    lines = ["", "| server and tree | first page after a change, ms | again | a page, ms | all keys, s | keys/s | MB before, after |",
             "|---|--:|--:|--:|--:|--:|---|"]
    for name, runs in by_program(entry):
        seconds = middle(runs, "seconds")
        before, after = min(run["mb"][0] for run in runs), max(run["mb"][1] for run in runs)
        lines.append(f"| {name} | {middle(runs, 'cold_ms'):.1f} | {middle(runs, 'first_ms'):.1f} | {middle(runs, 'page_ms'):.1f} "
                     f"| {seconds:.2f} | {entry['files'] / seconds:,.0f} | {before:.1f}, {after:.1f} |")
    return [*lines, "", f"{entry['files']:,} empty plain files, pages of 1,000 by one client. Memory is what no file backs."]
