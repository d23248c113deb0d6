"""What renkei must hold, and whether the results show it: each line names the scenarios its figures come from.

P is the payload limit of a path without its loss: rate x 1448/1514.
"""

import math
import statistics

from bench import floor, inside, objects, sharing, streams, volumes
from bench.rows import MSS, good_rows, rounds

USUAL = 3  # rounds: with fewer, a line does not hold yet
HOLDS, FAILS, PART, NOT = "holds", "**does not**", "in part", "not measured"
FEW = "holds, too few rounds"


class Line:
    """One requirement: figures as (label, value or None, whether it holds), and the scenarios they are of."""

    def __init__(self, name, must, figures, shown_by):
        self.name, self.must, self.figures, self.shown_by = name, must, figures, shown_by

    @property
    def verdict(self):
        known = [holds for _, value, holds in self.figures if value is not None]
        if not known:
            return NOT
        if not all(known):
            return FAILS
        return HOLDS if len(known) == len(self.figures) else PART

    def least_rounds(self, entries):
        found = [entry for name in self.shown_by for one, entry in entries.items() if one == name or one.startswith(f"{name}-")]
        return min((rounds(entry) for entry in found if entry["runs"]), default=USUAL)

    def verdict_of(self, entries):
        """The verdict, which fewer rounds than usual do not show."""
        return FEW if self.verdict == HOLDS and self.least_rounds(entries) < USUAL else self.verdict

    def sources(self, entries):
        """The scenarios, and how often they were measured if that is less than usual."""
        least = self.least_rounds(entries)
        few = f" ({least} round{'s' if least > 1 else ''})" if least < USUAL else ""
        return ", ".join(self.shown_by) + few

    def cells(self, entries):
        shown = ", ".join(f"{label} {value if value is not None else '?'}{'' if value is None or holds else ' (!)'}".strip()
                          for label, value, holds in self.figures)
        return f"| {self.name} | {self.must} | {shown} | {self.verdict_of(entries)} | {self.sources(entries)} |"


def payload(entry):
    """P in bytes per second."""
    return entry["limit"] / (1 - entry["loss"])


def figure(label, value, least=None, most=None, form="{:.2f}"):
    """A value that must be at least, or at most, so much; unknown if None."""
    if value is None:
        return label, None, False
    return label, form.format(value), (least is None or value >= least) and (most is None or value <= most)


def of_p(entries, name, program="renkei"):
    """The whole job's share of P."""
    row = good_rows(entries.get(name)).get(program)
    return row.durable_rate / payload(entries[name]) if row else None


def steady_of_p(entries, name):
    row = good_rows(entries.get(name)).get("renkei")
    return row.steady / payload(entries[name]) if row and row.steady else None


def best_rate(entries, name):
    row = good_rows(entries.get(name)).get("renkei")
    return row.durable_rate if row else None


def ratio(one, other):
    return one / other if one is not None and other else None


def steady(entries):
    for rate, share, rtts in ((1, 0.95, ("0.2", "10", "100", "350")), (2, 0.95, ("0.2", "10", "100", "350")),
                              (5, 0.93, ("10",))):
        names = [f"steady-{rate}g-{rtt}" for rtt in rtts]
        figures = [figure(f"{rtt} ms", steady_of_p(entries, name), share) for rtt, name in zip(rtts, names)]
        yield Line(f"steady rate, {rate} Gbit/s", f">= {share} P", figures, [f"steady-{rate}g"])


def whole_jobs(entries):
    # The same copy is in two scenarios.
    cold = next((name for name in ("ramp", "b-350-file") if of_p(entries, name) is not None), "ramp")
    yield Line("ramp, cold", ">= 0.80 P, whole job", [figure("", of_p(entries, cold), 0.80, form="{:.3f}")], [cold])
    second = figure("", of_p(entries, "ramp", "renkei-pops-2nd"), 0.90, form="{:.3f}")
    yield Line("ramp, second job", ">= 0.90 P, whole job", [second], ["ramp"])
    for loss, share in (("1e4", 0.90), ("1e3", 0.88)):
        name = f"b-100-{loss}-file"
        yield Line(f"loss 1e-{loss[-1]}, 100 ms", f">= {share:.2f} P, whole job", [figure("", of_p(entries, name), share)],
                   [name])


def many_files(entries):
    paths = ("b-10", "b-100-1e4", "b-100-1e3", "b-350")
    figures = [figure(path, ratio(best_rate(entries, f"{path}-montage"), best_rate(entries, f"{path}-file")), 0.95)
               for path in paths]
    yield Line("many files", "Montage set >= 0.95 of the one-file rate", figures, [f"{path}-montage" for path in paths])


def tiny_files(entries):
    for floor_name, what in (("LOCAL-unsynced", "LOCAL"), ("LOCAL", "LOCAL and sync")):
        figures = []
        for label, name in (("0.2 ms", "b-near-tiny"), ("10 ms", "b-10-tiny")):
            found = good_rows(entries.get(name))
            ours, local = found.get("renkei"), found.get(floor_name)
            figures.append(figure(label, ratio(local.median(), ours.median()) if ours and local else None, 0.85))
        yield Line(f"tiny files against {what}", ">= 0.85 of its files/s", figures, ["b-near-tiny", "b-10-tiny"])
    yield far_tiny(entries)


def t_ramp(rate, rtt_ms, count=8):
    """Seconds of slow start until so many streams fill the path."""
    product = rate / 8 * rtt_ms / 1000
    return rtt_ms / 1000 * (1 + math.log2(product / (count * 10 * MSS)))


def far_tiny(entries):
    """The same files at the same rate, 350 ms against 0.2 ms."""
    far, near = (good_rows(entries.get(name)).get("renkei") for name in ("b-350-tiny", "b-near2g-tiny"))
    allowed = t_ramp(2e9, 350) + 4 * 0.35
    longer = far.median() - near.median() if far and near else None
    return Line("tiny files, 350 ms", f"at most T_ramp (8 streams) + 4 RTT = {allowed:.2f} s longer than at 0.2 ms",
                [figure("", longer, most=allowed, form="{:.2f} s")], ["b-350-tiny", "b-near2g-tiny"])


def processor(entries):
    entry = entries.get("b-10-file")
    found = {name: row.machine_per_gb for name, row in good_rows(entry).items()}
    ours = found.get("renkei")
    for name in ("rsync", "xrdcp", "rclone"):
        other = found.get(name)
        known = ours is not None and other is not None
        shown = f"{ours:.2f} against {other:.2f} s/GB" if known else None
        yield Line(f"CPU, {name}", f"whole machine below {name}'s", [("", shown, known and ours < other)], ["b-10-file"])
    alone = floor.seconds((entry or {}).get("floor"))
    known = ours is not None and "RAW" in found and alone is not None
    allowed = found["RAW"] + 1.3 * alone if known else 0
    shown = f"{ours:.2f} of {found['RAW']:.2f} + 1.3 x {alone:.2f} = {allowed:.2f} s/GB" if known else None
    yield Line("CPU, floor", "at most RAW + 1.3 x (seal + open + hash at both ends)", [("", shown, known and ours <= allowed)],
               ["b-10-file"])


def memory(entries):
    entry = entries.get("memory")
    row = good_rows(entry).get("renkei-16")
    product = entry["rate"] / 8 * entry["rtt_ms"] / 1000 if entry else 1
    times = row.memory / product if row and row.memory else None
    yield Line("memory, 350 ms, 16 streams", "at most 2.5 x bandwidth x delay", [figure("", times, most=2.5)], ["memory"])


def beside(entries):
    figures, names = [], ("sharing-1g-20", "sharing-2g-100")
    for name in names:
        for control in sharing.CONTROLS:
            entry = entries.get(name)
            kept = sharing.share_kept(entry, f"{control} beside renkei-background") if entry else None
            figures.append(figure(f"{control}, {name.removeprefix('sharing-')}", kept, 0.9))
    yield Line("sharing, background class", "others keep >= 0.9 of their solo rate", figures, names)
    runs = [run["jain"] for run in entries.get("jobs", {"runs": []})["runs"] if "jain" in run]
    index = statistics.median(runs) if runs else None
    yield Line("sharing, two jobs", "Jain index >= 0.9", [figure("", index, 0.9)], ["jobs"])
    yield from limits(entries)


def limits(entries):
    names = ("limit-100m-10", "limit-800m-10", "limit-100m-350", "limit-800m-350", "limit-100m-10-tiny")
    long_run, windows = [], []
    for name in names:
        entry, label = entries.get(name), name.removeprefix("limit-")
        runs = [run for run in entry["runs"] if "error" not in run] if entry else []
        share = statistics.median(run["rate"] for run in runs) / entry["cap"] if runs else None
        top = max(run["largest"] for run in runs) / entry["cap"] if runs else None
        long_run.append(figure(label, share, 0.98, 1.02, "{:.3f}"))
        windows.append(figure(label, top, most=1.05, form="{:.3f}"))
    yield Line("rate limit", "within 2 % in the long run", long_run, ["limit"])
    yield Line("rate limit, 1 s windows", "at most 1.05 of it", windows, ["limit"])


def shallow(entries):
    row = good_rows(entries.get("b-shallow-file")).get("renkei")
    yield Line("queue of 1 % of BDP", ">= 0.85 P", [figure("", of_p(entries, "b-shallow-file"), 0.85)], ["b-shallow-file"])
    resent = row.resent if row else None
    unpaced = good_rows(entries.get("b-shallow-file")).get("renkei-unpaced")
    without = (f"(without pacing {unpaced.resent:.1%}, {of_p(entries, 'b-shallow-file', 'renkei-unpaced'):.2f} P)"
               if unpaced and unpaced.resent is not None else None)
    figures = [figure("", resent, most=0.01, form="{:.2%}"), (without or "without pacing", "" if without else None, True)]
    yield Line("queue of 1 % of BDP, resent", "at most 1 % with pacing; the figure without beside it", figures,
               ["b-shallow-file"])


def cooperative(entries):
    shares, totals = [], []
    for name, queue in (("cooperative", "queue of 1 BDP"), ("cooperative-shallow", "of 0.1 BDP")):
        found = dict(streams.by_program(entries[name])) if name in entries else {}
        share, total = ({one: statistics.median(of(run["rates"]) for run in runs) for one, runs in found.items()}
                        for of in (lambda rates: rates[0] / rates[-1], lambda rates: sum(rates) / 1e6))
        shares.append(figure(queue, share.get("renkei-8"), 0.8))
        ours, others = total.get("renkei-8"), {one: value for one, value in total.items() if one != "renkei-8"}
        # Where the uncoordinated streams fill the link there is nothing above them.
        full = ours is not None and ours * 1e6 >= 0.99 * payload(entries[name])
        totals += [(f"{queue}: {ours:.1f} against {one}", f"{value:.1f} MB/s", ours > value or full)
                   for one, value in others.items() if ours is not None] or [(queue, None, False)]
    yield Line("eight CUBIC streams, 350 ms", "slowest of fastest >= 0.8 over 30 s", shares, ["cooperative"])
    yield Line("eight CUBIC streams, total", "above the uncoordinated total, or at the limit itself (0.99 P)", totals, ["cooperative"])


def mounts(entries):
    for what, words, shares in (("read", "reader", (0.90, 0.90, 0.80)), ("write", "writer", (0.85, 0.85, 0.75))):
        figures = []
        for rtt, share in zip((10, 100, 350), shares):
            found = good_rows(entries.get(f"m-{rtt}"))
            copy, mount = found.get("renkei"), found.get(f"renkei-mount-{what}")
            figures.append(figure(f"{rtt} ms", ratio(copy.median(), mount.median()) if copy and mount else None, share))
        must = f">= {shares[0]:.2f} of the rate of a copy, {shares[-1]:.2f} at 350 ms"
        yield Line(f"mount, one {words}", must, figures, ["m"])


    yield from trees(entries)
    yield from inside_mounts(entries)


def trees(entries):
    """The Montage set by `cp -r`, beside `renkei cp`."""
    found = good_rows(entries.get("m-montage"))
    copy = found.get("renkei")
    for what, mounts_of in (("", {"out of it": "read", "into it until the home has all": "followed"}),
                            (", without a PoP of one's own", {"into it": "write", "closed early": "early"})):
        figures = []
        for label, name in mounts_of.items():
            mount = found.get(f"renkei-mount-{name}")
            figures.append(figure(label, ratio(copy.median(), mount.median()) if copy and mount else None, 0.80))
        yield Line(f"mount, Montage by `cp -r` at 10 ms{what}", ">= 0.80 of the rate of a copy", figures, ["m-montage"])


def inside_mounts(entries):
    for what in ("read", "write"):
        figures = []
        for rtt in ("3.3", "4"):
            entry = entries.get(f"m-srfs-{rtt}")
            for length in (length for length in inside.LENGTHS if length >= 1 << 20):
                rate = inside.rate_at(entry, f"renkei-mount-{what}", length)
                label = f"{rtt} ms, {inside.shown_bytes(length)}"
                figures.append(figure(label, rate / entry["limit"] if rate else None, 0.90))
        yield Line(f"mount, SRFS's table, {what}", ">= 0.90 P from 1 MiB on", figures, ["m-srfs-3.3", "m-srfs-4"])
    local, small = entries.get("m-local"), entries.get("m-small")
    figures = [figure("in order", inside.share(local, "renkei-mount-local", "rate"), 0.90),
               figure("4 KiB by chance", inside.share(local, "renkei-mount-local", "reads"), 0.80)]
    yield Line("mount, replica here", "in order >= 0.90 of native, by chance >= 0.80", figures, ["m-local"])
    creates = inside.share(small, "renkei-mount-write", "creates", "gfarm2fs-write")
    yield Line("mount, create and close", ">= 2 x gfarm2fs", [figure("", creates, 2)], ["m-small"])
    stats = inside.share(small, "renkei-mount-write", "stats")
    yield Line("mount, stat of a cached tree", ">= 0.80 of native", [figure("", stats, 0.80)], ["m-small"])


def far_volumes(entries):
    entry = entries.get("v-list-350")
    figures = [figure(label, volumes.part(entry, name, "seconds"), most=1.2)
               for label, name in (("", volumes.FOLLOWER), ("1,000 changes pending", volumes.PENDING))]
    yield Line("volume, `ls -lR` of 100,000 files", "at a follower 350 ms away at most 1.2 x the time at home", figures,
               ["v-list-350"])
    near, far = entries.get("v-bulk-0.2"), entries.get("v-bulk-100")
    figures = [figure(title, ratio(*(inside.middle(one, volumes.WRITER, key) for one in (far, near))), most=1.3)
               for key, title in volumes.STAGES.items()]
    yield Line("volume, 10,000 files written from afar", "at 100 ms at most 1.3 x the time at 0.2 ms", figures,
               ["v-bulk-0.2", "v-bulk-100"])


def over_s3(entries):
    put, found = entries.get("h-s3-small"), entries.get("h-s3-list")
    figures = [figure("", objects.against_peers(put, "put_rate"), least=1.0)]
    yield Line("S3, PUT of 10,000 objects of 10 KB", "as many a second as the best peer", figures, ["h-s3-small"])
    figures = [figure(title, inside.middle(found, f"renkei-s3, {title}", "first_ms"), most=50, form="{:.1f} ms")
               for _, title in objects.TREES.values()]
    yield Line("S3, the first page of 1,000,000 keys", "within 50 ms, of folders that were listed before", figures, ["h-s3-list"])


def lines(entries):
    """All requirements, in the order of the page."""
    return [line for part in (steady, whole_jobs, many_files, tiny_files, processor, memory, beside, shallow, cooperative,
                              mounts, far_volumes, over_s3)
            for line in part(entries)]


def section(entries):
    found = lines(entries)
    words = {HOLDS: "hold", FEW: "hold in fewer than three rounds", FAILS: "do not", PART: "as far as measured",
             NOT: "not measured"}
    count = {word: sum(line.verdict_of(entries) == verdict for line in found) for verdict, word in words.items()}
    said = ", ".join(f"{number} {word}" for word, number in count.items() if number)
    return ["## What must hold", "", "TLS 1.3 and digests on, durable at the end, by the results below: medians, the scenario "
            "in the last column has the peers of the same run. P is the payload limit of the path (rate x 1448/1514), "
            f"`(!)` marks what is missed, `?` what has not been measured. {len(found)} lines: {said}.", "",
            "| | must | measured | | shown by |", "|---|---|---|---|---|", *[line.cells(entries) for line in found]]
