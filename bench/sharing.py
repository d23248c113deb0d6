"""Beside others: what one iperf3 flow gets alone, and beside a copy of each class; and how well a limit is kept."""

import os
import signal
import statistics
import subprocess
import time

from bench.measure import Fail, largest_window, part_rate
from bench.peers import iperf
from bench.streams import Sampler, acked, by_program, total_at

SECONDS, LEAD = 20, 3  # of a flow that is counted; of a copy before the flow begins
CONTROLS = ("cubic", "bbr")


def measure(run, scenario, entry):
    """Each kind of flow alone and beside each class, in turn; iperf3 has one stream."""
    names = run.take_part(entry, ["renkei-background", "renkei"])
    for turn in range(run.bench.options.rounds):
        for control in CONTROLS:
            for name in [None, *names]:
                if run.bench.out_of_time():
                    return run.bench.results.cut(entry, turn)
                figures = flow(run, scenario, control, name, entry)
                label = f"{control} beside {name}" if name else f"{control} alone"
                run.bench.results.add(entry, label, turn, figures)
                run.tell(turn, label, figures)


def flow(run, scenario, control, name, entry):
    """One iperf3 flow, beside a copy that began before it if a name is given."""
    seconds = max(5, round(SECONDS * min(1, 2 * run.bench.options.scale)))
    ramp = 2 + int(20 * scenario.path.rtt_ms / 1000)
    try:
        if name is None:
            return {"rate": round(iperf.measure(run.stage, seconds, ramp, 1, control)[0])}
        return beside(run, scenario, control, name, entry, seconds, ramp)
    except Fail as error:
        return {"error": str(error)}


def beside(run, scenario, control, name, entry, seconds, ramp):
    run.bench.peers[name].renew(run.stage)
    with run.folder() as folder:
        log = os.path.join(run.bench.work, "beside.log")
        argv = run.grouped(name, run.command(name, scenario, folder, entry))
        sampler = Sampler(run.stage)
        sampler.start()
        with open(log, "wb") as out:
            copy = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        try:
            time.sleep(LEAD + ramp - 2)
            first = sampler.now()
            whole, intervals = iperf.measure(run.stage, seconds, ramp, 1, control, lambda: copy.poll() is None)
        finally:
            stop(copy)
            points = sampler.finish()
        if copy.returncode not in (0, -signal.SIGINT, -signal.SIGKILL, 130):
            with open(log, errors="replace") as text:
                raise Fail(f"status {copy.returncode}: {text.read()[-300:].strip()}")
    return shares(points, run.bench.peers[name].port, first + ramp, whole, intervals, seconds)


def shares(points, port, begin, whole, intervals, seconds):
    """The flow's rate and ours over the seconds in which both ran."""
    together = [bits for bits, both in intervals if both]
    if len(together) < min(5, seconds):
        raise Fail(f"the copy ended too early: {len(together)} s beside the flow")
    rate = whole if len(together) >= seconds else statistics.mean(together)
    of_port = [(at, {key: one for key, one in sockets.items() if key[1].endswith(f":{port}")}) for at, sockets in points]
    series = acked(of_port)
    ours = (total_at(series, begin + len(together)) - total_at(series, begin)) / len(together)
    return {"rate": round(rate), "ours": round(8 * ours), "window": len(together)}


def stop(copy):
    """Ends a copy that is still at work."""
    for number in (signal.SIGINT, signal.SIGKILL):
        if copy.poll() is None:
            os.killpg(copy.pid, number)
            try:
                copy.wait(10)
            except subprocess.TimeoutExpired:
                continue


def section(entry):
    lines = ["", "| flow | Mbit/s | of its solo rate | the copy's Mbit/s | both of limit | over s |",
             "|---|--:|--:|--:|--:|--:|"]
    for name, runs in by_program(entry):
        rate = statistics.median(run["rate"] for run in runs)
        ours = statistics.median(run.get("ours", 0) for run in runs)
        kept = share_kept(entry, name)
        lines.append(f"| {name} | {rate / 1e6:,.0f} | {f'{kept:.2f}' if kept is not None else ''} "
                     f"| {f'{ours / 1e6:,.0f}' if 'beside' in name else ''} | {(rate + ours) / 8 / entry['limit']:.2f} "
                     f"| {min(run.get('window', SECONDS) for run in runs)} |")
    return [*lines, "", f"One iperf3 stream; a copy beside it began {LEAD} s and 20 RTT before. The ramp of each flow (2 s "
            "and 20 RTT) is not counted, alone or beside. Where the copy ended before the flow, only the time with both."]


def share_kept(entry, name):
    """What a flow keeps of its solo rate beside a copy: medians of all rounds; None for the flow alone."""
    found = dict(by_program(entry))
    alone = f"{name.split()[0]} alone"
    if name == alone or name not in found or alone not in found:
        return None
    return statistics.median(run["rate"] for run in found[name]) / statistics.median(run["rate"] for run in found[alone])


# ---- the rate limit --------------------------------------------------------------------------------------------------


def limited(run, scenario, entry):
    """One copy under `--limit`, sampled at the receiver every 20 ms."""
    for name in run.take_part(entry, ["renkei"]):
        for turn in range(run.bench.options.rounds):
            if run.bench.out_of_time():
                return
            flag = ["--limit", f"{scenario.cap // 10**6}Mbit"]
            one = run.copy(name, scenario, turn, entry, flag, every=0.02)
            entry["cap"] = scenario.cap
            figures = {"error": one.error} if one.error else limit_figures(one, entry["bytes"])
            run.bench.results.add(entry, name, turn, figures)
            run.tell(turn, name, figures)


def limit_figures(one, size):
    """Bits per second: between 10 and 95 % of the bytes, in the largest second, of the whole job."""
    return {"rate": round(8 * part_rate(one.trace, size, 0.10, 0.95)),
            "largest": round(8 * largest_window(one.trace, size)), "whole": round(8 * size / one.seconds),
            "seconds": round(one.seconds, 2)}


def limited_section(entry):
    lines = ["", "| `--limit` Mbit/s | long run | of the limit | largest 1 s | of the limit | whole job | s |",
             "|--:|--:|--:|--:|--:|--:|--:|"]
    for _, runs in by_program(entry):
        cap, middle = entry["cap"], {key: statistics.median(run[key] for run in runs) for key in runs[0]
                                     if key in ("rate", "whole", "seconds")}
        top = max(run["largest"] for run in runs)
        lines.append(f"| {cap / 1e6:g} | {middle['rate'] / 1e6:.1f} | {middle['rate'] / cap:.3f} | {top / 1e6:.1f} "
                     f"| {top / cap:.3f} | {middle['whole'] / 1e6:.1f} | {middle['seconds']:.2f} |")
    return [*lines, "", "Bytes of files: the receiver's counters, sampled every 20 ms, less their share of headers and resent "
            "bytes. Long run: between 10 and 95 % of the bytes; the largest second of all rounds."]
