"""The results that are kept: one small JSON file per scenario in bench/results, the newest replaces the one before.

Each file stands alone: what was measured, when, at which commit, on which machine, with which programs and settings.
So scenarios can be measured at different times and the report still says for each where its figures come from.
"""

import json
import os

from bench import network
from bench.machine import REPOSITORY, is_older
from bench.measure import Fail

FORMAT = 2
FOLDER = os.path.join(REPOSITORY, "bench", "results")
# Every fifth sample of a run goes into the file: half a second, which is what the plots show.
THIN = 5


class Results:
    """Collects one scenario after the other; each is written when it is complete, so that nothing is lost."""

    def __init__(self, options, machine):
        self.options, self.machine = options, machine
        self.kept, self.left_out, self.failures = [], [], []

    def begin(self, scenario, size=0, files=0, checks=None):
        """A scenario's entry, to be filled and then kept."""
        path, options = scenario.path, self.options
        settings = dict(network.TUNED if scenario.kernel == "tuned" else network.STOCK,
                        **{name: network.LIMIT_OF[scenario.kernel] for name in network.LIMITS})
        return {"format": FORMAT, "id": scenario.id, "kind": scenario.kind, "title": scenario.title,
                "date": self.machine["date"], "commit": self.machine["commit"], "scale": options.scale,
                "path": path.shown(), "limit": path.limit, "rate": path.rate, "rtt_ms": path.rtt_ms, "loss": path.loss,
                "mtu": path.mtu, "kernel": scenario.kernel, "data": scenario.data.title if scenario.data else "",
                "bytes": size, "files": files, "paper": scenario.paper, "plot": scenario.plot,
                "machine": {key: value for key, value in self.machine.items() if key not in ("date", "commit")},
                "settings": settings, "checks": checks or {}, "programs": {}, "commands": {}, "absent": {}, "runs": []}

    def absent(self, entry, name, reason):
        entry["absent"][name] = reason

    def program(self, entry, peer, shown):
        """What the report says of a program that took part."""
        entry["programs"].setdefault(peer.name, {
            "version": peer.version(), "about": " ".join((peer.__doc__ or "").split()), "direction": peer.direction,
            "encrypted": peer.encrypted, "checks": peer.checks, "durable": peer.durable})
        entry["commands"].setdefault(peer.name, shown)

    def add(self, entry, name, turn, figures):
        entry["runs"].append({"program": name, "round": turn, **figures})

    def cut(self, entry, turn):
        """Time is over in the middle of a round: only whole rounds stay, in which all were measured."""
        entry["runs"] = [run for run in entry["runs"] if run["round"] < turn]

    def keep(self, entry):
        """Writes an entry. One that was cut before each program had its turn is no comparison and is not kept."""
        if not entry["runs"] and not entry.get("found"):
            return self.left_out.append(entry["id"])
        os.makedirs(self.options.results, exist_ok=True)
        write(os.path.join(self.options.results, entry["id"] + ".json"), entry)
        self.kept.append(entry["id"])

    def failed(self, names, reason):
        self.failures.append((names, reason))


def write(path, entry):
    """One line per field and per run, so that a change can be read."""
    runs = [{**run, "trace": run["trace"][::THIN]} if run.get("trace") else run for run in entry["runs"]]
    fields = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in entry.items() if key != "runs"]
    lines = ",\n".join("  " + json.dumps(run) for run in runs)
    part = path + ".part"
    with open(part, "w") as out:
        out.write("{\n" + ",\n".join(fields) + ',\n "runs": [\n' + lines + "\n ]\n}\n")
    os.replace(part, path)


def load(path):
    try:
        with open(path) as file:
            found = json.load(file)
    except (OSError, ValueError) as error:
        raise Fail(f"{path}: {error}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise Fail(f"{path}: not a result of this version")
    return found


def load_all(folder=FOLDER):
    """All entries of a folder, by id."""
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    entries = [load(os.path.join(folder, name)) for name in names if name.endswith(".json")]
    return {entry["id"]: entry for entry in entries}


def missing(chosen, done, commit=""):
    """Those scenarios that have no result, or one that is older than a commit if one is named."""
    return [one for one in chosen if one.id not in done or (commit and is_older(done[one.id]["commit"], commit))]
