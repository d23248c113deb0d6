"""Makes docs/benchmarks.md and its plots from a result file."""

import os
import statistics

from bench import svg
from bench.machine import REPOSITORY

PAGE = os.path.join(REPOSITORY, "docs", "benchmarks.md")
PLOTS = os.path.join(REPOSITORY, "docs", "benchmarks")
BEGIN, END = "<!-- sites: begin -->", "<!-- sites: end -->"
OURS, FLOORS = ("renkei", "renkei-pops"), ("RAW", "LOCAL")
# The tables of the RENKEI-PoP paper, row = from, in the order of SITES.
SITES = ("titech", "titech2", "osaka", "nii", "kek", "nagoya", "tkb")
PAPER = {
    "rtt_ms": ["- 0.24 9.80 4.27 5.87 6.30 5.71", "0.16 - 9.62 4.27 5.86 6.28 5.71",
               "9.62 9.59 - 12.84 14.39 4.27 14.26", "4.27 4.30 12.86 - 9.08 9.56 8.92",
               "5.83 5.89 14.37 9.06 - 11.12 0.81", "6.32 6.33 4.28 9.51 11.06 - 11.00",
               "5.71 5.71 14.25 8.96 0.83 10.98 -"],
    "mbytes_per_s": ["- 1120 381 770 451 29 174", "1120 - 418 761 450 19 172", "530 526 - 466 319 65 205",
                     "557 555 484 - 466 67 490", "412 413 299 376 - 48 748", "14 12 16 10 7 - 5",
                     "357 433 341 415 623 43 -"],
}


class Row:
    """All good runs of one program in one scenario."""

    def __init__(self, entry, name, programs):
        self.name, self.durable = name, programs.get(name, {}).get("durable", "no")
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


def rows(entry, programs):
    names = list(dict.fromkeys(run["program"] for run in entry["runs"]))
    return [Row(entry, name, programs) for name in names]


# ---- tables ----------------------------------------------------------------------------------------------------------


def table(entry, programs):
    """One scenario: its heading, its table, what failed, what the paper has."""
    every = rows(entry, programs)
    good = sorted((row for row in every if row.good), key=lambda row: row.durable_seconds)
    peers = [row.durable_rate for row in good if row.name not in (*OURS, *FLOORS)]
    best, many = max(peers, default=None), entry["files"] > 1
    lines = heading(entry)
    unit = "files/s" if many else "Gbit/s"
    lines += ["", f"| program | median s | min | max | MB/s | {unit} | of best peer | of limit | CPU s/GB, both ends "
              "| machine less wire | + sync s | durable by |", "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|"]
    lines += [line(row, entry, best, many) for row in good]
    lines += [""] + [failure(row) for row in every if row.bad]
    lines += memory(every, entry)
    lines += [f"- {name}: did not take part, {reason}" for name, reason in entry["absent"].items()]
    lines += [f"- paper: {note}" for note in entry["paper"]]
    return lines + [""]


def heading(entry):
    count = f"{entry['files']:,} files, " if entry["files"] > 1 else ""
    title = f": {entry['title']}" if entry["title"] else ""
    kernel = ", stock kernel settings" if entry["kernel"] == "stock" else ""
    rounds = max((run["round"] for run in entry["runs"]), default=-1) + 1
    lines = [f"### {entry['id']}{title}", "",
             f"{entry['path']}{kernel}; {entry['data']}, {count}{entry['bytes'] / 1e6:,.0f} MB; {rounds} rounds."]
    checks = entry["checks"]
    if checks:
        seen = checks["iperf_bps"] / 8e6
        share = f" ({checks['iperf_bps'] / 8 / entry['limit']:.2f} of the limit)" if entry["limit"] else ""
        limit = f"Limit {entry['limit'] / 1e6:,.1f} MB/s; " if entry["limit"] else ""
        lines.append(f"{limit}ping {checks['rtt_ms']:g} ms; iperf3, one stream: {seen:,.1f} MB/s{share}.")
    return lines


def line(row, entry, best, many):
    low, high = row.bounds()
    second = f"{row.files / row.median():,.0f}" if many else f"{row.rate * 8 / 1e9:.2f}"
    of_best = f"{row.durable_rate / best:.2f}" if best and row.name not in FLOORS else ""
    of_limit = f"{row.rate / entry['limit']:.2f}" if entry["limit"] and row.name != "LOCAL" else ""
    name = f"**{row.name}**" if row.name in OURS else row.name
    machine = row.per_gb(lambda run: max(0.0, run["machine"] - run["wire"]))
    return (f"| {name} | {row.median():.2f} | {low:.2f} | {high:.2f} | {row.rate / 1e6:,.1f} | {second} | {of_best} "
            f"| {of_limit} | {row.per_gb(lambda run: run['cpu']):.2f} | {machine:.2f} "
            f"| {row.median(lambda run: run['sync_seconds']):.2f} | {row.durable} |")


def memory(every, entry):
    """One line with the peaks of those runs that were sampled, against the bandwidth-delay product."""
    peaks = {row.name: run["memory"] for row in every for run in row.good if run.get("memory")}
    if not peaks or not entry["rate"]:
        return []
    product = entry["rate"] / 8 * entry["rtt_ms"] / 1000
    shown = ", ".join(f"{name} {peak / 1e6:,.0f} MB ({peak / product:.1f})" for name, peak in peaks.items())
    return [f"- peak memory above idle, both ends, processes and TCP sockets (in brackets: times bandwidth x delay, "
            f"{product / 1e6:,.0f} MB): {shown}"]


def failure(row):
    run = row.bad[0]
    there = f"; {run['received'] / row.size:.0%} had come over the network" if "received" in run else ""
    message = " ".join(run["error"].split())[:300]
    return f"- {row.name}, round {run['round'] + 1}, after {run['seconds']:.1f} s: {message}{there}"


def summary(result):
    """One line per scenario: ours, the best peer, the limit."""
    lines = ["| scenario | renkei MB/s | of limit | best peer | its MB/s | renkei against it |",
             "|---|--:|--:|---|--:|--:|"]
    for entry in result["scenarios"]:
        good = [row for row in rows(entry, result["programs"]) if row.good]
        ours = next((row.durable_rate for row in good if row.name == OURS[0]), None)
        best = max(((row.durable_rate, row.name) for row in good if row.name not in (*OURS, *FLOORS)), default=None)
        limit = f"{ours / entry['limit']:.2f}" if ours and entry["limit"] else ""
        against = f"**{ours / best[0]:.2f}**" if ours and best else ""
        lines.append(f"| {entry['id']} | {f'{ours / 1e6:,.1f}' if ours else 'failed'} | {limit} "
                     f"| {best[1] if best else ''} | {f'{best[0] / 1e6:,.1f}' if best else ''} | {against} |")
    return lines


def matrix(found):
    """Measured beside the paper's, row = from."""
    lines = []
    for key, title in (("rtt_ms", "RTT, ms"), ("mbytes_per_s", "iperf3, one stream, MB/s")):
        lines += ["", f"{title}; in brackets the paper's", "", "| | " + " | ".join(SITES) + " |",
                  "|---|" + "--:|" * len(SITES)]
        for source, paper in zip(SITES, PAPER[key]):
            cells = [f"{found[key][f'{source} {target}']:g} ({old})" if f"{source} {target}" in found[key] else ""
                     for target, old in zip(SITES, paper.split())]
            lines.append(f"| {source} | " + " | ".join(cells) + " |")
    return [f"### a5: the matrices of {found['file']}", *lines, ""]


# ---- circumstances ---------------------------------------------------------------------------------------------------


def circumstances(result):
    machine, options = result["machine"], result["options"]
    kinds = [f"  {kind}: " + ", ".join(f"`{name}={value}`" for name, value in values.items())
             for kind, values in result["kernel_settings"].items()]
    return [
        "- `make bench` repeats it, `bench/run --list` names the scenarios, `--only`, `--peers`, `--rounds`, `--scale` and "
        "`--work` choose (`make bench BENCH_FLAGS=...`).",
        f"- {machine['date']}, commit {machine['commit']}; Linux {machine['kernel']}, {machine['processor']}, "
        f"{machine['cores']} cores, {machine['memory_gib']} GiB; source and destination on {machine['file_system']}",
        f"- {options['rounds']} rounds (3 where a run takes over 30 s), scale {options['scale']:g}. Every round runs each "
        "program once, in an order drawn by chance with a fixed seed. The source is read into memory and `sync` runs before "
        "each copy, the destination is empty; the first copy of each program is compared by size and SHA-256.",
        "- Limit: the rate of the link x 1448/1514 (1348/1414 with MTU 1400) x (1 - loss), the payload share of frames. "
        "Best peer: the fastest program but renkei's own rows, RAW and LOCAL.",
        "- Programs are compared by the time until the copy is on stable storage: where `durable by` has `no`, `of best "
        "peer`, the summary, the plots against RTT, loss and size and the order of rows count the seconds and the "
        "`+ sync s` after them. The other columns are of the command alone.",
        "- CPU is user + system of all processes of both ends, servers included; the next column is the whole machine's "
        "busy time without the emulator's process. The kernel's receive work runs partly in the emulator's time, for all "
        "programs alike. What is not durable when its command ends has `no`; `+ sync s` is what a sync after it takes.",
        "- Kernel settings of both ends:", *kinds,
        "- In the rows with stock settings gridftp and lftp leave the size of their buffers to the kernel, for its limits "
        "would cap what they ask for. renkei runs as root there too, so on all but short paths it picks BBR and "
        "forces its send buffer past the limits; the others have CUBIC and what the kernel gives.",
        "- Also: " + ", ".join(f"`{name}={value}`" for name, value in machine["sysctls"].items()),
    ]


def programs(result):
    lines = ["### Programs and flags", "", "| program | version | client at | encrypted | checks | durable by | |",
             "|---|---|---|---|---|---|---|"]
    for name, facts in result["programs"].items():
        place = "source" if facts["direction"] == "push" else "destination"
        lines.append(f"| {name} | {facts['version'].replace('|', '')} | {place} | {'yes' if facts['encrypted'] else 'no'} "
                     f"| {facts['checks']} | {facts['durable']} | {facts['about']} |")
    return [*lines, "", "```", *commands(result), "```"]


def commands(result):
    """What was called, for a file and for a tree; with stock settings only where it differs."""
    shown = {}
    for entry in sorted(result["scenarios"], key=lambda entry: entry["kernel"] == "stock"):
        note = " (stock)" if entry["kernel"] == "stock" else ""
        for name, command in entry["commands"].items():
            if shown.get((name, entry["files"] > 1, "")) != command:
                shown.setdefault((name, entry["files"] > 1, note), command)
    return [f"{name}{note}: {command}" for (name, _, note), command in sorted(shown.items())]


# ---- plots -----------------------------------------------------------------------------------------------------------


def sweep(result, kind):
    """Series of (name, [(x, rate in bytes/s, files/s)]) of the scenarios made for a plot."""
    found = {}
    for entry in result["scenarios"]:
        if entry["plot"] and entry["plot"][0] == kind:
            for row in rows(entry, result["programs"]):
                if row.good and row.name not in FLOORS:
                    point = (entry["plot"][1], row.durable_rate, row.files / row.durable_seconds)
                    found.setdefault(row.name, []).append(point)
    return found.items()


def traces(entry):
    """Rate over time in MB/s, each point the mean of half a second."""
    found = []
    for run in entry["runs"]:
        points = run.get("trace") or []
        picked = points[::5]
        rates = [((a[0] + b[0]) / 2, (b[1] - a[1]) / (b[0] - a[0]) / 1e6) for a, b in zip(picked, picked[1:])]
        if rates:
            found.append((run["program"], rates))
    return found


def plots(result):
    """File name to SVG text, only those there is data for."""
    found = {}
    for entry in result["scenarios"]:
        series = traces(entry)
        if series:
            title = f"Rate over time, {entry['id']}: {entry['path']}"
            found[f"time-{entry['id']}.svg"] = svg.plot(title, "s", "MB/s", series, marks=False,
                                                         limit=(entry["limit"] or 0) / 1e6)
    for kind, title, label, column, scale, unit in (
            ("rtt", "Rate against RTT, 1 Gbit/s", "RTT, ms", 1, 1e6, "MB/s"),
            ("rtt2g", "Rate against RTT, 2 Gbit/s", "RTT, ms", 1, 1e6, "MB/s"),
            ("loss", "Rate against loss, 1 Gbit/s, 100 ms", "loss", 1, 1e6, "MB/s"),
            ("size", "Files per second against file size, 1 Gbit/s, 10 ms", "bytes", 2, 1, "files/s")):
        series = [(name, [(point[0], point[column] / scale) for point in points])
                  for name, points in sweep(result, kind)]
        if series:
            found[f"{kind}.svg"] = svg.plot(title, label, unit, series, log_x=True, log_y=kind == "size")
    return found


# ---- the page --------------------------------------------------------------------------------------------------------


def tables(result):
    """The section as lines of Markdown."""
    lines = ["## Between sites", "", *circumstances(result), "", *summary(result), ""]
    for entry in result["scenarios"]:
        lines += table(entry, result["programs"])
    for found in result["matrices"]:
        lines += matrix(found)
    if result["left_out"]:
        lines += [f"Not measured for want of time: {', '.join(result['left_out'])}.", ""]
    lines += [f"Not measured: {', '.join(one['scenarios'])}: {one['reason']}" for one in result["failed"]]
    return lines + programs(result)


def write_page(result):
    """Replaces the section in docs/benchmarks.md and the plots it shows."""
    drawn = plots(result)
    os.makedirs(PLOTS, exist_ok=True)
    for name, text in drawn.items():
        with open(os.path.join(PLOTS, name), "w") as out:
            out.write(text)
    shown = [f"![{name.removesuffix('.svg')}](benchmarks/{name})" for name in drawn]
    text = "\n".join([BEGIN, *tables(result), "", *shown, END])
    with open(PAGE) as old:
        page = old.read()
    if BEGIN in page:
        page = page[:page.index(BEGIN)] + text + page[page.index(END) + len(END):]
    else:
        page = page.rstrip("\n") + "\n\n" + text + "\n"
    with open(PAGE, "w") as out:
        out.write(page)
