"""Makes docs/benchmarks.md and its plots from all results that are kept, each scenario with its own date and commit."""

import os

from bench import floor, inside, matrix, must, objects, sharing, streams, svg, volumes
from bench.machine import REPOSITORY
from bench.rows import FLOORS, conditions, good_rows, is_ours, is_peer, rounds, rows
from bench.scenarios import every

PAGE = os.path.join(REPOSITORY, "docs", "benchmarks.md")
PLOTS = os.path.join(REPOSITORY, "docs", "benchmarks")
BEGIN, END = "<!-- sites: begin -->", "<!-- sites: end -->"
MUST_BEGIN, MUST_END = "<!-- must: begin -->", "<!-- must: end -->"
# The sections of what is not a table of copies.
SECTIONS = {"matrix": matrix.section, "sharing": sharing.section, "limit": sharing.limited_section,
            "jobs": streams.jobs_section, "cooperative": streams.cooperative_section,
            "lengths": inside.lengths_section, "local": inside.local_section, "small": inside.small_section,
            "listing": volumes.listing_section, "bulk": volumes.bulk_section, "joining": volumes.joining_section,
            "objects": objects.small_section, "keys": objects.keys_section}
SAMPLED = "steady MB/s"
# From this share of a core's time on, something was busy all the time.
FULL = 0.95


def in_order(entries):
    """Entries in the order of the list of scenarios; those it no longer has are left out."""
    return [entries[one.id] for one in every() if one.id in entries]


# ---- one scenario ----------------------------------------------------------------------------------------------------


def section(entry):
    """Heading and figures of one scenario, what failed and what was absent."""
    lines = heading(entry)
    if entry["kind"] == "copies":
        lines += table(entry)
    elif any("error" not in run for run in entry["runs"]) or "found" in entry:
        lines += SECTIONS[entry["kind"]](entry)
    lines += ["", *failures(entry)]
    lines += [f"- {', '.join(name for name in entry['absent'] if entry['absent'][name] == reason)}: did not take part, {reason}"
              for reason in dict.fromkeys(entry["absent"].values())]
    return lines + [f"- paper: {note}" for note in entry["paper"]] + [""]


def heading(entry):
    count = f"{entry['files']:,} files, " if entry["files"] > 1 else ""
    title = f": {entry['title']}" if entry["title"] else ""
    kernel = ", stock kernel settings" if entry["kernel"] == "stock" else ""
    what = f"; {entry['data']}, {count}{entry['bytes'] / 1e6:,.0f} MB" if entry["bytes"] else ""
    number = rounds(entry)
    how_often = f"{number} round{'s' if number > 1 else ''}, " if number else ""
    scale = f", scale {entry['scale']:g}" if entry["scale"] != 1 else ""
    lines = [f"### {entry['id']}{title}", "", f"{entry['path']}{kernel}{what}; {how_often}{entry['date']}, "
             f"commit {entry['commit']}{scale}. {circumstance(entry)}".rstrip()]
    return lines + checks(entry)


def circumstance(entry):
    """Where this scenario ran, and what else the machine did meanwhile."""
    found = conditions(entry)
    if not found:
        return ""
    low, high, stolen = found
    return f"{entry['machine']['processor']}; load before a run {low:.1f} to {high:.1f}, steal at most {stolen:.1%}."


def checks(entry):
    """What ping and iperf3 said of the path before."""
    found = entry["checks"]
    if not found:
        return []
    shown = [f"Limit {entry['limit'] / 1e6:,.1f} MB/s"] if entry["limit"] else []
    shown.append(f"ping {found['rtt_ms']:g} ms")
    for key, title in (("iperf_bps", "one stream"), ("iperf8_bps", "eight streams")):
        if key in found:
            share = f" ({found[key] / 8 / entry['limit']:.2f} of the limit)" if entry["limit"] else ""
            shown.append(f"iperf3, {title}: {found[key] / 8e6:,.1f} MB/s{share}")
    return ["; ".join(shown) + "."]


def table(entry):
    """Copies: one line per program, the fastest first."""
    good = sorted(good_rows(entry).values(), key=lambda row: row.durable_seconds)
    best = max((row.durable_rate for row in good if is_peer(row.name)), default=None)
    many, sampled = entry["files"] > 1, any(row.steady for row in good)
    unit, more = "files/s" if many else "Gbit/s", f" {SAMPLED} | of limit |" if sampled else ""
    lines = ["", f"| program | median s | min | max | MB/s | {unit} | of best peer | of limit | CPU s/GB, both ends "
             f"| machine less wire | wire | bytes per packet | packets per GB | + sync s | durable by |{more}",
             "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|" + ("--:|--:|" if sampled else "")]
    lines += [line(row, entry, best, many) + (steady(row, entry) if sampled else "") for row in good]
    return lines + [""] + full(good, entry) + memory(good, entry) + resent(good, entry) + floor_of(good, entry)


def line(row, entry, best, many):
    low, high = row.bounds()
    second = f"{row.files / row.median():,.0f}" if many else f"{row.rate * 8 / 1e9:.2f}"
    of_best = f"{row.durable_rate / best:.2f}" if best and row.name not in FLOORS else ""
    of_limit = f"{row.rate / entry['limit']:.2f}" if entry["limit"] and not row.name.startswith("LOCAL") else ""
    name = f"**{row.name}**" if is_ours(row.name) else row.name
    return (f"| {name} | {row.median():.2f} | {low:.2f} | {high:.2f} | {row.rate / 1e6:,.1f} | {second} | {of_best} "
            f"| {of_limit} | {row.per_gb(lambda run: run['cpu']):.2f} | {row.machine_per_gb:.2f} | {row.wire_per_gb:.2f} "
            f"| {packets(row)} "
            f"| {row.median(lambda run: run['sync_seconds']):.2f} | {row.durable} |")


def packets(row):
    return "{:,.0f} | {:,.0f}".format(*row.handed) if row.handed else " |"


def full(good, entry):
    """Whose rate says more of the machine than of the program: the emulator had a core for itself, or no core was free."""
    if not entry["rate"]:
        return []
    cores = entry["machine"].get("cores") or 1
    wire = [row.name for row in good if row.wire_share > FULL]
    cpu = [row.name for row in good if row.machine_share > FULL * cores and row.name not in wire]
    lines = [f"- the emulator, which has one thread, was busy all the time and the limit of: {', '.join(wire)}"] if wire else []
    return lines + ([f"- all cores were busy all the time, and the limit of: {', '.join(cpu)}"] if cpu else [])


def steady(row, entry):
    if row.steady is None:
        return "  |  |"
    return f" {row.steady / 1e6:,.1f} | {row.steady / entry['limit']:.2f} |" if entry["limit"] else " |  |"


def memory(good, entry):
    """One line with the peaks of those runs that were sampled, against the bandwidth-delay product."""
    peaks = {row.name: row.memory for row in good if row.memory}
    if not peaks or not entry["rate"] or entry["rtt_ms"] < 100:
        return []
    product = entry["rate"] / 8 * entry["rtt_ms"] / 1000
    shown = ", ".join(f"{name} {peak / 1e6:,.0f} MB ({peak / product:.1f})" for name, peak in peaks.items())
    return [f"- peak memory above idle, both ends, processes and TCP sockets (in brackets: times bandwidth x delay, "
            f"{product / 1e6:,.0f} MB): {shown}"]


def resent(good, entry):
    """What the sender's kernel sent again, and what the link dropped."""
    shown = [f"{row.name} {row.resent:.2%} ({row.dropped('lost'):,.0f} + {row.dropped('overflowed'):,.0f})"
             for row in good 
             if row.resent is not None and row.dropped("lost") is not None and not row.name.startswith("LOCAL")]
    if not shown or not entry["rate"]:
        return []
    return ["- sent again, of the file's bytes (in brackets: packets the link lost at random + for want of room in its "
            f"queue): {', '.join(shown)}"]


def floor_of(good, entry):
    found = entry.get("floor")
    if not found:
        return []
    alone, raw = floor.seconds(found), next((row for row in good if row.name == "RAW"), None)
    if alone is None or raw is None:
        return [f"- floor of the CPU: {found.get('missing', 'RAW did not run')}"]
    parts = ", ".join(f"{field.split('_')[0]} {found[field]:.3f}" for field in floor.FIELDS)
    return [f"- floor of the CPU: encryption and the digest at both ends alone {alone:.2f} s/GB ({parts}); RAW + 1.3 x that "
            f"is {raw.machine_per_gb + 1.3 * alone:.2f} s/GB of the whole machine"]


def failures(entry):
    found = []
    for row in rows(entry):
        if row.bad:
            run = row.bad[0]
            there = f"; {run['received'] / row.size:.0%} had come over the network" if "received" in run else ""
            after = f", after {run['seconds']:.1f} s" if "seconds" in run else ""
            message = " ".join(run["error"].split())[:300]
            found.append(f"- {row.name}, round {run['round'] + 1}{after}: {message}{there}")
    return found


def summary(entries):
    """One line per scenario of copies: ours, the best peer, the limit."""
    lines = ["| scenario | renkei MB/s | of limit | best peer | its MB/s | renkei against it |",
             "|---|--:|--:|---|--:|--:|"]
    copies = [entry for entry in entries if entry["kind"] == "copies"]
    for entry in copies:
        good = good_rows(entry)
        ours = good["renkei"].durable_rate if "renkei" in good else None
        best = max(((row.durable_rate, row.name) for row in good.values() if is_peer(row.name)), default=None)
        limit = f"{ours / entry['limit']:.2f}" if ours and entry["limit"] else ""
        against = f"**{ours / best[0]:.2f}**" if ours and best else ""
        lines.append(f"| {entry['id']} | {f'{ours / 1e6:,.1f}' if ours else 'none'} | {limit} "
                     f"| {best[1] if best else ''} | {f'{best[0] / 1e6:,.1f}' if best else ''} | {against} |")
    return [*lines, ""] if copies else []


# ---- circumstances ---------------------------------------------------------------------------------------------------


def circumstances(entries):
    settings = {entry["kernel"]: entry["settings"] for entry in entries}
    kinds = [f"  {kind}: " + ", ".join(f"`{name}={value}`" for name, value in values.items())
             for kind, values in settings.items()]
    return [
        "- `make bench` repeats it, `bench/run --list` names the scenarios and when each was measured, `--only`, `--missing`, "
        "`--budget`, `--peers` and `--rounds` choose (`make bench BENCH_FLAGS=...`). Each scenario is measured in one run, "
        "all its programs interleaved; its date, commit and rounds are in its section. Scenarios of other days compare less well.",
        *[f"- {machine}" for machine in dict.fromkeys(machine_of(entry["machine"]) for entry in entries)],
        "- Every round runs each program once, in an order drawn by chance with a fixed seed; 5 rounds unless a section says "
        "otherwise, 3 where a run takes over 30 s. The source is read into memory (warm) and `sync` runs before each copy, the "
        "destination is a folder never used before; the first copy of each program is compared by size and SHA-256.",
        "- Limit: the rate of the link x 1448/1514 (1348/1414 with MTU 1400) x (1 - loss), the payload share of frames. "
        "Best peer: the fastest program but renkei's own rows, RAW and LOCAL.",
        "- Programs are compared by the time until the copy is on stable storage: where `durable by` has `no`, `of best "
        "peer`, the summary, the plots against RTT, loss and size and the order of rows count the seconds and the "
        "`+ sync s` after them. The other columns but `machine less wire` are of the command alone.",
        "- CPU is user + system of all processes of both ends, servers included. `machine less wire` is the whole machine's "
        "busy time per GB without the emulator's process, until the copy is on stable storage (with the work of the sync "
        "after it where `durable by` has `no`). The kernel's receive work runs partly in the emulator's time, for all "
        "programs alike. `wire` is the emulator's own time per GB. `+ sync s` is what a sync after the command takes.",
        "- `bytes per packet` is what the sender's kernel hands to the device at once, many segments of TCP where a stream is fast; "
        "`packets per GB` counts such packets.",
        "- Steady rate: over the middle 60 % of the bytes, from the receiver's counters every 0.1 s, headers and resent bytes "
        "taken off in equal shares.",
        "- renkei-pops and renkei-pops-2nd have two PoPs that are started anew before each copy, so that nothing is kept from "
        "the round before; of renkei-pops-2nd the second of two jobs counts.",
        "- Kernel settings of both ends:", *kinds,
        "- In the rows with stock settings gridftp and lftp leave the size of their buffers to the kernel, for its limits "
        "would cap what they ask for. renkei runs as root there too, so on all but short paths it picks BBR and "
        "forces its send buffer past the limits; the others have CUBIC and what the kernel gives.",
    ]


def machine_of(machine):
    return (f"Linux {machine['kernel']}, {machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB; source "
            f"and destination on {machine['file_system']}; "
            + ", ".join(f"`{name}={' '.join(value.split())}`" for name, value in machine["sysctls"].items()))


def programs(entries):
    lines = ["### Programs and flags", "", "| program | version | client at | encrypted | checks | durable by | |",
             "|---|---|---|---|---|---|---|"]
    known = {name: facts for entry in sorted(entries, key=lambda entry: entry["date"])
             for name, facts in entry["programs"].items()}
    for name, facts in known.items():
        place = "source" if facts["direction"] == "push" else "destination"
        lines.append(f"| {name} | {facts['version'].replace('|', '')} | {place} | {'yes' if facts['encrypted'] else 'no'} "
                     f"| {facts['checks']} | {facts['durable']} | {facts['about']} |")
    return [*lines, "", "```", *commands(entries), "```"]


def commands(entries):
    """What was called, for a file and for a tree; with stock settings only where it differs."""
    shown = {}
    for entry in sorted(entries, key=lambda entry: entry["kernel"] == "stock"):
        note = " (stock)" if entry["kernel"] == "stock" else ""
        for name, command in entry["commands"].items():
            if shown.get((name, entry["files"] > 1, "")) != command:
                shown.setdefault((name, entry["files"] > 1, note), command)
    return [f"{name}{note}: {command}" for (name, _, note), command in sorted(shown.items())]


# ---- plots -----------------------------------------------------------------------------------------------------------


def sweep(entries, kind):
    """Series of (name, [(x, rate in bytes/s, files/s)]) of the scenarios made for a plot."""
    found = {}
    for entry in entries:
        if entry["plot"] and entry["plot"][0] == kind:
            for row in good_rows(entry).values():
                if row.name not in FLOORS:
                    point = (entry["plot"][1], row.durable_rate, row.files / row.durable_seconds)
                    found.setdefault(row.name, []).append(point)
    return found.items()


def traces(entry):
    """Rate over time in MB/s between the samples that were kept."""
    found = []
    for run in entry["runs"]:
        points = run.get("trace") or []
        rates = [((a[0] + b[0]) / 2, (b[1] - a[1]) / (b[0] - a[0]) / 1e6) for a, b in zip(points, points[1:]) if b[0] > a[0]]
        if rates and "error" not in run:
            found.append((run["program"], rates))
    return found


def plots(entries):
    """File name to SVG text, only those there is data for."""
    found = {}
    for entry in entries:
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
                  for name, points in sweep(entries, kind)]
        if series:
            found[f"{kind}.svg"] = svg.plot(title, label, unit, series, log_x=True, log_y=kind == "size")
    return found


# ---- the page --------------------------------------------------------------------------------------------------------


def tables(entries):
    """All but the first table, as lines of Markdown."""
    found = in_order(entries)
    lines = ["## Between sites", "", *circumstances(found), "", *summary(found)]
    for entry in found:
        lines += section(entry)
    missing = [one.id for one in every() if one.id not in entries]
    if missing:
        lines += [f"Not measured yet: {', '.join(missing)}.", ""]
    return lines + programs(found)


def brief(entries):
    """What one run measured, for the terminal: sections, the summary, and the requirements they say something of."""
    found = in_order(entries)
    shown = [line.cells(entries) for line in must.lines(entries) if line.verdict != must.NOT]
    return [text for entry in found for text in section(entry)] + summary(found) + shown


def write_page(entries):
    """Replaces what is generated in docs/benchmarks.md, and the plots it shows."""
    drawn = plots(in_order(entries))
    os.makedirs(PLOTS, exist_ok=True)
    for name, text in drawn.items():
        with open(os.path.join(PLOTS, name), "w") as out:
            out.write(text)
    shown = [f"![{name.removesuffix('.svg')}](benchmarks/{name})" for name in drawn]
    with open(PAGE) as old:
        page = old.read()
    page = replace(page, MUST_BEGIN, must.section(entries), MUST_END)
    page = replace(page, BEGIN, [*tables(entries), "", *shown], END)
    with open(PAGE, "w") as out:
        out.write(page)


def replace(page, begin, lines, end):
    """The page with what stands between two marks replaced; at its end if it has not got them yet."""
    text = "\n".join([begin, *lines, end])
    if begin in page:
        return page[:page.index(begin)] + text + page[page.index(end) + len(end):]
    return page.rstrip("\n") + "\n\n" + text + "\n"
