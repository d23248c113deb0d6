"""The result file: everything a run saw, as JSON, so that the report can be made again."""

import json
import os
import time

from bench import network
from bench.machine import REPOSITORY
from bench.measure import Fail

FORMAT = 1


class Results:
    """Collects as the run goes on; written after every scenario, so that an interrupted run is not lost."""

    def __init__(self, options, machine):
        folder = os.path.join(REPOSITORY, "bench", "results")
        self.path = options.out or os.path.join(folder, time.strftime("%Y%m%d-%H%M%S.json"))
        self.all = {
            "format": FORMAT, "machine": machine,
            "kernel_settings": {kind: dict(values, **{name: network.LIMIT_OF[kind] for name in network.LIMITS})
                                for kind, values in (("tuned", network.TUNED), ("stock", network.STOCK))},
            "options": {name: getattr(options, name) for name in ("rounds", "scale", "quick", "only", "peers", "limit")},
            "programs": {}, "scenarios": [], "matrices": [], "left_out": [], "failed": [],
        }

    def begin(self, scenario, size, files, checks):
        path = scenario.path
        entry = {"id": scenario.id, "title": scenario.title, "path": path.shown(), "limit": path.limit,
                 "rate": path.rate, "rtt_ms": path.rtt_ms, "loss": path.loss, "kernel": scenario.kernel,
                 "data": scenario.data.title, "bytes": size, "files": files, "paper": scenario.paper,
                 "plot": scenario.plot, "checks": checks, "runs": [], "absent": {}, "commands": {}}
        self.all["scenarios"].append(entry)
        return entry

    def site_sysctls(self, values):
        """Settings that hold at the sites, where the machine's own may be others."""
        self.all["machine"]["sysctls"].update(values)

    def absent(self, entry, name, reason):
        entry["absent"][name] = reason

    def add(self, entry, name, turn, run, peer, shown):
        if name not in self.all["programs"]:
            self.all["programs"][name] = {
                "version": peer.version(), "about": " ".join((peer.__doc__ or "").split()), "direction": peer.direction,
                "encrypted": peer.encrypted, "checks": peer.checks, "durable": peer.durable}
        entry["commands"].setdefault(name, shown)
        entry["runs"].append({"program": name, "round": turn, **run.record()})

    def matrix(self, file, found):
        self.all["matrices"].append({"file": file, **found})

    def left_out(self, names):
        self.all["left_out"] += names

    def failed(self, names, reason):
        self.all["failed"].append({"scenarios": names, "reason": reason})

    def write(self):
        os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
        part = self.path + ".part"
        with open(part, "w") as out:
            json.dump(self.all, out, indent=1)
        os.replace(part, self.path)
        return self.path


def load(path):
    try:
        with open(path) as file:
            found = json.load(file)
    except (OSError, ValueError) as error:
        raise Fail(f"{path}: {error}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise Fail(f"{path}: not a result file of this version")
    return found
