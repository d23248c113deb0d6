"""What the runs of a scenario come to: one row per program, with medians and what they are compared by."""

import statistics

FLOORS = ("RAW", "LOCAL", "LOCAL-unsynced")
MSS = 1448


def is_ours(name):
    return name.startswith("renkei")


def is_peer(name):
    return not is_ours(name) and name not in FLOORS


class Row:
    """All good runs of one program in one scenario."""

    def __init__(self, entry, name):
        self.name, self.durable = name, entry["programs"].get(name, {}).get("durable", "no")
        runs = [run for run in entry["runs"] if run["program"] == name]
        self.good = [run for run in runs if "error" not in run]
        self.bad = [run for run in runs if "error" in run]
        self.size, self.files = entry["bytes"], entry["files"]

    def median(self, value=lambda run: run["seconds"]):
        return statistics.median(value(run) for run in self.good)

    def bounds(self):
        seconds = [run["seconds"] for run in self.good]
        return min(seconds), max(seconds)

    @property
    def rate(self):
        """Bytes per second of the median run."""
        return self.size / self.median()

    def until_durable(self, run):
        """Seconds until the copy is on stable storage, with the sync after it if the program makes none."""
        return run["seconds"] + (run["sync_seconds"] if self.durable == "no" else 0)

    @property
    def durable_seconds(self):
        return self.median(self.until_durable)

    @property
    def durable_rate(self):
        """Bytes per second until all is on stable storage: what programs are compared by."""
        return self.size / self.durable_seconds

    def per_gb(self, value):
        return self.median(value) / (self.size / 1e9)

    @property
    def machine_per_gb(self):
        """Busy seconds of the whole machine but the emulator, until the copy is on stable storage."""
        def busy(run):
            after = run.get("sync_machine", 0.0) if self.durable == "no" else 0.0
            return max(0.0, run["machine"] - run["wire"] + after)
        return self.per_gb(busy)

    @property
    def wire_per_gb(self):
        """Busy seconds of the emulator."""
        return self.per_gb(lambda run: run["wire"])

    @property
    def wire_share(self):
        """Cores that the emulator had on average."""
        return self.median(lambda run: run["wire"] / run["seconds"])

    @property
    def machine_share(self):
        """Cores that were busy on average, the emulator's too."""
        return self.median(lambda run: run["machine"] / run["seconds"])

    @property
    def handed(self):
        """Bytes of a packet handed to the device, and such packets per GB of the file; None if not counted."""
        found = [run["handed"] for run in self.good if run.get("handed", {}).get("packets")]
        if not found:
            return None
        size = statistics.median(one["bytes"] / one["packets"] for one in found)
        return size, statistics.median(one["packets"] for one in found) / (self.size / 1e9)

    @property
    def steady(self):
        """Bytes per second over the middle 60 %, or None."""
        found = [run["steady"] for run in self.good if "steady" in run]
        return statistics.median(found) if found else None

    @property
    def memory(self):
        """The highest peak of all sampled rounds, or None."""
        return max((run["memory"] for run in self.good if run.get("memory")), default=None)

    @property
    def resent(self):
        """Share of the file's bytes that the sender sent again, or None."""
        found = [run["resent"] * MSS / self.size for run in self.good if "resent" in run]
        return statistics.median(found) if found else None

    def dropped(self, why):
        """Packets the link dropped, `lost` or `overflowed`; None if not counted."""
        found = [run["drops"][why] for run in self.good if "drops" in run]
        return statistics.median(found) if found else None


def rows(entry):
    return [Row(entry, name) for name in dict.fromkeys(run["program"] for run in entry["runs"])]


def good_rows(entry):
    return {row.name: row for row in rows(entry) if row.good} if entry else {}


def conditions(entry):
    """Load before the runs, lowest and highest, and the largest share of all cores that others had; None if not noted."""
    runs = [run for run in entry["runs"] if "load" in run and "steal" in run and run.get("seconds")]
    if not runs:
        return None
    loads = [run["load"] for run in runs]
    stolen = max(run["steal"] / run["seconds"] for run in runs) / (entry["machine"].get("cores") or 1)
    return min(loads), max(loads), stolen


def rounds(entry):
    return max((run["round"] for run in entry["runs"]), default=-1) + 1
