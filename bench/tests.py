"""Tests of the benchmark's own parts: `python3 -m unittest bench.tests`."""

import datetime
import hashlib
import os
import statistics
import tempfile
import tomllib
import types
import unittest
import xml.etree.ElementTree

from bench import (copies, data, inside, machine, measure, must, objects, record, report, s3_client, scenarios, sharing,
                   streams, svg, tpc_client, volumes)
from bench.peers import PEERS
from bench.peers.base import Stage


class Data(unittest.TestCase):
    def test_montage_has_the_shape_of_the_paper(self):
        sizes = data.montage_sizes(data.MONTAGE_FILES)
        self.assertEqual((len(sizes), min(sizes), max(sizes)), (6756, 292, 27_000_000))
        self.assertAlmostEqual(statistics.mean(sizes), 2e6, delta=4e4)
        self.assertEqual(sizes, data.montage_sizes(data.MONTAGE_FILES))

    def test_a_copy_is_compared_by_name_size_and_content(self):
        with tempfile.TemporaryDirectory() as work:
            data.make_tiny(f"{work}/a", 3)
            whole = data.digests(f"{work}/a")
            data.compare(whole, dict(whole))
            data.compare(whole, {f"other-{number}": value for number, value in enumerate(whole.values())})
            with open(f"{work}/a/0000/event-000001.dat", "r+b") as file:
                first = file.read(1)
                file.seek(0)
                file.write(bytes([first[0] ^ 1]))
            wrong = data.digests(f"{work}/a")
            less = dict(list(whole.items())[1:])
            for found in (wrong, less, {}):
                with self.assertRaises(measure.Fail):
                    data.compare(whole, found)


class ThirdPartyCopies(unittest.TestCase):
    """The client of copies between two servers."""

    def test_the_last_line_is_the_result(self):
        marker = "Perf Marker\nStripe Bytes Transferred: 5\nEnd\n"
        self.assertIsNone(tpc_client.outcome(marker + "success: Created\n"))
        self.assertEqual(tpc_client.outcome(marker + "failure: HTTP 403"), "failure: HTTP 403")
        self.assertEqual(tpc_client.outcome(marker), "End")
        self.assertEqual(tpc_client.outcome(""), "no result")

    def test_all_files_of_an_item_are_copied(self):
        with tempfile.TemporaryDirectory() as work:
            data.make_tiny(f"{work}/a", 3)
            names = tpc_client.files(work, "a")
            self.assertEqual([name for name in names if not os.path.isfile(f"{work}/{name}")], [])
            self.assertEqual(len(names), 3)
            self.assertEqual(tpc_client.files(work, names[0]), [names[0]])

    def test_tokens_go_to_their_servers_and_are_not_shown(self):
        plan = {"source": "https://a/x", "target": "https://b/y", "source_token": "one", "target_token": "two"}
        headers = tpc_client.headers(plan, "a b")
        self.assertEqual(headers["Source"], "https://a/x/a%20b")
        self.assertEqual((headers["Authorization"], headers["TransferHeaderAuthorization"]), ("Bearer two", "Bearer one"))
        for scenario in scenarios.selected(["h-100-tpc-file", "h-100-tpc-small"]):
            self.assertEqual([name for name in scenario.peers if name not in PEERS], [])


class Inside(unittest.TestCase):
    """Figures of what programs do inside mounts."""

    @staticmethod
    def entry(kind, runs):
        return {"id": "x", "kind": kind, "limit": 1e8, "bytes": 10**8, "runs": [{"round": 0, **run} for run in runs]}

    def test_lengths_are_rates_of_the_limit(self):
        seconds = {str(length): 2.0 for length in inside.LENGTHS}
        entry = self.entry("lengths", [{"program": "renkei-mount-read", "seconds": seconds}])
        self.assertEqual(inside.rate_at(entry, "renkei-mount-read", 4096), 5e7)
        self.assertIsNone(inside.rate_at(entry, "renkei-mount-write", 4096))
        self.assertIn("| renkei-mount-read | " + " | ".join(["50.0 (0.50)"] * 5) + " |", inside.lengths_section(entry))

    def test_shares_are_of_native(self):
        runs = [{"program": "native", "creates": 1000, "stats": 500_000},
                {"program": "renkei-mount-write", "creates": 500, "stats": 400_000}, {"program": "other", "error": "no"}]
        entry = self.entry("small", runs)
        self.assertEqual(inside.share(entry, "renkei-mount-write", "stats"), 0.8)
        self.assertIsNone(inside.share(entry, "other", "stats"))
        self.assertIn("| renkei-mount-write | 500.0 | 0.50 | 400.0 | 0.80 |", inside.small_section(entry))
        verdicts = {line.name: line.verdict for line in must.lines({"m-small": entry})}
        self.assertEqual(verdicts["mount, stat of a cached tree"], must.HOLDS)
        self.assertEqual(verdicts["mount, create and close"], must.NOT)


class Volumes(unittest.TestCase):
    """Figures of volumes over sites."""

    def test_lists_are_beside_the_home(self):
        runs = [{"program": name, "round": 0, "seconds": seconds, "find": 1.0}
                for name, seconds in zip(volumes.ENDS, (2.0, 2.2, 3.0))]
        entry = {"id": "v-list-350", "kind": "listing", "files": 100_000, "runs": runs}
        self.assertIn("| at the follower | 2.20 | 2.20, 2.20 | 1.10 | 1.00 | 1.00 |", volumes.listing_section(entry))
        found = {line.name: line for line in must.lines({"v-list-350": entry})}["volume, `ls -lR` of 100,000 files"]
        self.assertEqual([holds for *_, holds in found.figures], [True, False])

    def test_many_files_are_beside_those_from_near(self):
        entries = {}
        for name, factor in (("v-bulk-0.2", 1.0), ("v-bulk-100", 1.25)):
            run = {"program": volumes.WRITER, "round": 0, "closed": 4 * factor, "named": 5 * factor, "there": 9.0}
            entries[name] = {"id": name, "kind": "bulk", "files": 10_000, "runs": [run]}
        self.assertIn("| last close | 4.00 | 4.00, 4.00 | 2,500 |", volumes.bulk_section(entries["v-bulk-0.2"]))
        found = {line.name: line.verdict for line in must.lines(entries)}
        self.assertEqual(found["volume, 10,000 files written from afar"], must.HOLDS)

    def test_a_tree_is_made_by_thousands(self):
        with tempfile.TemporaryDirectory() as work:
            volumes.make_empty(f"{work}/t", 1001)
            self.assertEqual([len(names) for _, _, names in sorted(os.walk(f"{work}/t"))], [0, 1000, 1])


class Objects(unittest.TestCase):
    """Objects over S3."""

    def test_a_signature_is_that_of_the_specification(self):
        # Signature calculations for the Authorization header, example "GET bucket lifecycle".
        now = datetime.datetime(2013, 5, 24, tzinfo=datetime.timezone.utc)
        keys = ("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
        headers = s3_client.signed_headers("GET", "examplebucket.s3.amazonaws.com", "/", "lifecycle=", now, keys,
                                           hashlib.sha256(b"").hexdigest())
        self.assertTrue(headers["authorization"].endswith(
            "Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"), headers)

    def test_rates_are_beside_the_best_peer(self):
        runs = [{"program": name, "round": 0, "put_rate": rate, "put_p50": 10.0, "put_p99": 20.0, "get_rate": 2000.0,
                 "get_p99": 9.0} for name, rate in (("renkei-s3", 900.0), ("minio", 600.0), ("versitygw", 450.0))]
        entry = {"id": "h-s3-small", "files": 10_000, "programs": {"renkei-s3": {"durable": "always"}}, "runs": runs}
        self.assertIn("| renkei-s3 | 900 | 900, 900 | 1.50 | 10.0 | 20.0 | 2,000 | 9.0 | always |",
                      objects.small_section(entry))
        found = {line.name: line for line in must.lines({"h-s3-small": entry})}["S3, PUT of 10,000 objects of 10 KB"]
        self.assertEqual(found.figures, [("", "1.50", True)])

    def test_lists_have_pages_and_memory(self):
        run = {"program": "renkei-s3, flat", "round": 0, "cold_ms": 400.0, "first_ms": 20.0, "page_ms": 15.0, "seconds": 20.0,
               "mb": [30.0, 60.0]}
        shown = objects.keys_section({"id": "h-s3-list", "files": 1_000_000, "runs": [run]})
        self.assertIn("| renkei-s3, flat | 400.0 | 20.0 | 15.0 | 20.00 | 50,000 | 30.0, 60.0 |", shown)
        entry = {"id": "h-s3-list", "files": 1, "runs": [{**run, "program": f"renkei-s3, {objects.TREES['flat'][1]}"}]}
        found = {line.name: line for line in must.lines({"h-s3-list": entry})}["S3, the first page of 1,000,000 keys"]
        self.assertEqual([value for _, value, _ in found.figures], [None, "20.0 ms"])
        self.assertEqual(s3_client.percentile([3, 1, 2], 0.99), 3)

    def test_a_tree_has_so_many_keys(self):
        with tempfile.TemporaryDirectory() as work:
            objects.make_tree(f"{work}/t", 25, 10)
            self.assertEqual([len(names) for _, _, names in sorted(os.walk(f"{work}/t"))], [0, 10, 10, 5])


class Scenarios(unittest.TestCase):
    def test_ids_are_unique_and_programs_known(self):
        ids = [one.id for one in scenarios.every()]
        self.assertEqual(len(ids), len(set(ids)))
        self.assertFalse({name for one in scenarios.every() for name in one.peers} - PEERS.keys() - {inside.NATIVE})
        self.assertFalse(set(scenarios.QUICK) - set(ids))

    def test_a_word_names_scenarios_by_beginning(self):
        self.assertEqual({one.id for one in scenarios.selected(["b-10"])},
                         {"b-10-file", "b-10-montage", "b-10-tiny", "b-10-file-stock"})
        self.assertEqual([one.id for one in scenarios.selected(["b-10-file"])], ["b-10-file"])
        self.assertTrue(all(one.id[0] == "c" for one in scenarios.selected(["c"])))
        self.assertEqual(scenarios.selected(["nothing"]), [])

    def test_a_path_becomes_a_topology(self):
        link = tomllib.loads(scenarios.Path(2 * scenarios.G, 0.9, 1e-4).topology())["link"][0]
        self.assertEqual((link["rate"], link["rtt"], link["loss"]), ("2000M", "0.9 ms", "0.01%"))
        self.assertAlmostEqual(scenarios.Path(scenarios.G, 10).limit, 1e9 / 8 * 1448 / 1514)
        path = scenarios.Path(scenarios.G, 4, queue="0.01 BDP", mtu=1400)
        link = tomllib.loads(path.topology())["link"][0]
        self.assertEqual((link["queue"], link["mtu"], path.shown()),
                         ("0.01 BDP", 1400, "1 Gbit/s, RTT 4 ms, queue 0.01 BDP, MTU 1400"))
        self.assertAlmostEqual(path.limit, 1e9 / 8 * 1348 / 1414)


class Space(unittest.TestCase):
    def test_what_has_no_room_is_not_begun(self):
        with tempfile.TemporaryDirectory() as work:
            for scale, room in ((1e-6, True), (1e6, False)):
                bench = types.SimpleNamespace(made={}, work=work, options=types.SimpleNamespace(scale=scale, work=work))
                if room:
                    copies.Bench.need_space(bench, {"large.dat": scenarios.LARGE})
                else:
                    with self.assertRaises(measure.Fail):
                        copies.Bench.need_space(bench, {"large.dat": scenarios.LARGE})


class Peers(unittest.TestCase):
    def test_buffers_are_the_kernels_own_with_stock_settings(self):
        network = types.SimpleNamespace(address=lambda site: f"address-{site}")
        for kernel, count in (("tuned", 1), ("stock", 0)):
            with tempfile.TemporaryDirectory() as work:
                stage = Stage(network, "one", "two", work, work, work, [], "renkei", kernel)
                for name in ("gridftp", "lftp"):
                    line = " ".join(PEERS[name]().copy(stage, "item", work))
                    self.assertEqual(line.count("67108864"), count, line)


def entry(name="b-10-file", **more):
    """One scenario's result, as it is kept."""
    facts = {"version": "1 | 2", "about": "", "direction": "push", "encrypted": False, "checks": "", "durable": "no"}
    machine = {"kernel": "", "processor": "", "cores": 2, "memory_gib": 1, "file_system": "", "sysctls": {}}
    return {"format": record.FORMAT, "id": name, "kind": "copies", "title": "", "date": "2026-01-02", "commit": "abc",
            "scale": 1, "path": "p", "limit": 2e8, "rate": 1e9, "rtt_ms": 1, "loss": 0, "mtu": 1500, "kernel": "tuned",
            "data": "d", "bytes": 10**9, "files": 1, "paper": ["was 1"], "plot": ["rtt", 1], "machine": machine,
            "settings": {}, "checks": {"rtt_ms": 1, "iperf_bps": 1.6e9}, "absent": {"gone": "not installed"},
            "programs": {"renkei": {**facts, "durable": "always"}, "slow": facts, "RAW": {**facts, "durable": "syncfs"}},
            "commands": {}, "runs": [], **more}


def run(name, seconds, **more):
    return {"program": name, "round": 0, "seconds": seconds, "cpu": 2.0, "machine": 3.0, "wire": 1.0,
            "sync_seconds": 0.5, "sync_machine": 0.25, "received": 0, **more}


def result():
    """Two programs and a floor; the third program fails, the fourth is not there."""
    runs = [run("renkei", 10.0), run("renkei", 8.0), run("renkei", 40.0), run("slow", 20.0), run("RAW", 5.0),
            run("broken", 3.0, error="status 1: no\nroute")]
    return {"b-10-file": entry(runs=runs)}


class Report(unittest.TestCase):
    def test_ratios_failures_and_absences_are_shown(self):
        page = "\n".join(report.tables(result()))
        self.assertIn("| **renkei** | 10.00 | 8.00 | 40.00 | 100.0 | 0.80 | 2.05 | 0.50 | 2.00 | 2.00 | 1.00 |  | | 0.50 |", page)
        # What is not on stable storage at its end pays for the sync after it, in time and in work.
        self.assertIn("| slow | 20.00 | 20.00 | 20.00 | 50.0 | 0.40 | 1.00 | 0.25 | 2.00 | 2.25 |", page)
        self.assertIn("| b-10-file | 100.0 | 0.50 | slow | 48.8 | **2.05** |", page)
        self.assertIn("| RAW | 5.00 | 5.00 | 5.00 | 200.0 | 1.60 |  | 1.00 |", page)
        self.assertIn("broken, round 1, after 3.0 s: status 1: no route", page)
        self.assertIn("gone: did not take part, not installed", page)
        self.assertIn("paper: was 1", page)
        self.assertIn("(1.00 of the limit)", page)
        self.assertIn("1 round, 2026-01-02, commit abc.", page)
        self.assertRegex(page, "Not measured yet: .*b-10-tiny")

    def test_steady_rate_memory_and_resent_are_shown(self):
        more = {"steady": 1.8e8, "memory": 50e6, "resent": 6906, "drops": {"lost": 3, "overflowed": 4}}
        found = entry("memory", rtt_ms=350, runs=[run("renkei", 10.0, **more)])
        page = "\n".join(report.tables({"memory": found}))
        self.assertIn("| always | 180.0 | 0.90 |", page)
        self.assertIn("renkei 50 MB (1.1)", page)
        self.assertIn("renkei 1.00% (3 + 4)", page)

    def test_packets_circumstances_and_what_was_the_limit_are_shown(self):
        more = {"handed": {"bytes": 1_040_000_000, "packets": 40_000}, "load": 0.5, "steal": 0.2}
        found = entry(runs=[run("renkei", 10.0, **more), run("RAW", 10.0, **{**more, "load": 1.5})])
        found["runs"][1].update(wire=9.9, machine=12.0)
        found["machine"]["processor"] = "Z80"
        page = "\n".join(report.section(found))
        self.assertIn("| 1.00 | 26,000 | 40,000 |", page)
        self.assertIn("Z80; load before a run 0.5 to 1.5, steal at most 1.0%.", page)
        self.assertIn("the emulator, which has one thread, was busy all the time and the limit of: RAW", page)
        self.assertNotIn("all cores", page)
        found["runs"][0]["machine"] = 19.5
        self.assertIn("all cores were busy all the time, and the limit of: renkei", "\n".join(report.section(found)))

    def test_a_matrix_has_the_papers_figures_beside(self):
        found = {"rtt_ms": {"kek tkb": 0.8}, "mbytes_per_s": {"nagoya tkb": 4.9}}
        lines = report.section(entry("a5-nominal", kind="matrix", found=found))
        self.assertTrue(any(line.startswith("| kek |") and line.endswith("0.8 (0.81) |") for line in lines))
        self.assertTrue(any(line.startswith("| nagoya |") and line.endswith("4.9 (5) |") for line in lines))

    def test_streams_jobs_flows_and_limits_are_shown(self):
        runs = [{"program": "renkei-8", "round": 0, "rates": [8e6, 10e6], "window": 30.0, "control": "cubic"}]
        page = "\n".join(report.section(entry("cooperative", kind="cooperative", runs=runs)))
        self.assertIn("| renkei-8 | 2 | cubic | 8.0 | 10.0 | 0.80 | 18.0 | 0.09 | 30 |", page)
        runs = [{"program": "renkei", "round": 0, "rates": [1e8, 1e8], "jain": 1.0, "window": 5.0, "seconds": [1, 2]}]
        self.assertIn("| 1 | 100.0 | 100.0 | 1.000 | 1.00 | 5 |",
                      "\n".join(report.section(entry("jobs", kind="jobs", runs=runs))))
        runs = [{"program": "cubic alone", "round": 0, "rate": 1e9},
                {"program": "cubic beside renkei", "round": 0, "rate": 6e8, "ours": 4e8, "window": 20}]
        page = "\n".join(report.section(entry("sharing-1g-20", kind="sharing", runs=runs)))
        self.assertIn("| cubic beside renkei | 600 | 0.60 | 400 | 0.62 | 20 |", page)
        runs = [{"program": "renkei", "round": 0, "rate": 99e6, "largest": 103e6, "whole": 90e6, "seconds": 20.0}]
        page = "\n".join(report.section(entry("limit-100m-10", kind="limit", runs=runs, cap=10**8)))
        self.assertIn("| 100 | 99.0 | 0.990 | 103.0 | 1.030 | 90.0 | 20.00 |", page)

    def test_a_part_of_a_page_is_replaced(self):
        page = report.replace("top\n", "<a>", ["one"], "</a>")
        self.assertEqual(page, "top\n\n<a>\none\n</a>\n")
        self.assertEqual(report.replace(page + "rest\n", "<a>", ["two"], "</a>"), "top\n\n<a>\ntwo\n</a>\nrest\n")

    def test_a_plot_is_xml_and_stays_inside(self):
        found = report.plots(list(result().values()))
        self.assertEqual(list(found), ["rtt.svg"])
        for log_y in (False, True):
            self.check_plot([("p", [(0.2, 3.0), (350, 117.0)]), ("q", [])], log_y)

    def check_plot(self, series, log_y):
        drawn = svg.plot("a < b", "x", "y", series, log_x=True, log_y=log_y, limit=119.5)
        circles = list(xml.etree.ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}circle"))
        self.assertEqual(len(circles), 2)
        for circle in circles:
            self.assertTrue(svg.LEFT <= float(circle.get("cx")) <= svg.WIDTH - svg.RIGHT)
            self.assertTrue(svg.TOP <= float(circle.get("cy")) <= svg.HEIGHT - svg.BOTTOM)


class Must(unittest.TestCase):
    def verdict(self, entries, name):
        return next(line.verdict for line in must.lines(entries) if line.name == name)

    def test_nothing_holds_that_was_not_measured(self):
        self.assertEqual({line.verdict for line in must.lines({})}, {must.NOT})

    def test_scenarios_it_asks_for_exist(self):
        ids = {one.id for one in scenarios.every()}
        for line in must.lines({}):
            for name in line.shown_by:
                self.assertTrue(any(one == name or one.startswith(f"{name}-") for one in ids), name)

    def test_the_whole_job_is_held_against_the_payload_without_loss(self):
        for seconds, verdict in ((5.55, must.HOLDS), (5.56, must.FAILS)):
            found = entry("b-100-1e4-file", limit=2e8 * (1 - 1e-4), loss=1e-4, runs=[run("renkei", seconds)])
            self.assertEqual(self.verdict({found["id"]: found}, "loss 1e-4, 100 ms"), verdict)

    def test_few_rounds_are_told(self):
        found = {"ramp": entry("ramp", runs=[run("renkei", 5.0)])}
        line = next(line for line in must.lines(found) if line.name == "ramp, cold")
        self.assertIn(f"| {must.FEW} | ramp (1 round) |", line.cells(found))
        found["ramp"]["runs"] += [{**run("renkei", 5.0), "round": turn} for turn in (1, 2)]
        self.assertIn(f"| {must.HOLDS} | ramp |", line.cells(found))

    def test_some_of_several_figures_are_not_all(self):
        found = {name: entry(name, runs=[run("renkei", 9.0, steady=1.91e8)]) for name in ("steady-1g-10", "steady-1g-100")}
        self.assertEqual(self.verdict(found, "steady rate, 1 Gbit/s"), must.PART)
        found["steady-1g-100"]["runs"][0]["steady"] = 1.89e8
        self.assertEqual(self.verdict(found, "steady rate, 1 Gbit/s"), must.FAILS)

    def test_the_floor_is_raw_and_the_cost_of_encryption_and_digest(self):
        alone = {"seal_s_per_gb": 0.1, "open_s_per_gb": 0.1, "hash_s_per_gb": 0.15}
        for machine, verdict in ((2.6, must.HOLDS), (2.7, must.FAILS)):
            runs = [run("renkei", 9.0, machine=machine), run("RAW", 9.0, machine=2.0), run("rsync", 9.0, machine=2.4)]
            found = {"b-10-file": entry(runs=runs, floor=alone)}
            self.assertEqual(self.verdict(found, "CPU, floor"), verdict)
        # 2.7 - 1 of ours against 2.4 - 1 + 0.25 of rsync's sync.
        found["b-10-file"]["programs"]["rsync"] = found["b-10-file"]["programs"]["slow"]
        self.assertEqual(self.verdict(found, "CPU, rsync"), must.FAILS)
        self.assertEqual(self.verdict({"b-10-file": entry(runs=runs)}, "CPU, floor"), must.NOT)

    def test_a_rate_limit_may_be_missed_on_either_side(self):
        name = "rate limit"
        for rate, verdict in ((1.0e8, must.PART), (0.97e8, must.FAILS), (1.03e8, must.FAILS)):
            runs = [{"program": "renkei", "round": 0, "rate": rate, "largest": 1e8, "whole": 9e7, "seconds": 20.0}]
            found = entry("limit-100m-10", kind="limit", runs=runs, cap=10**8)
            self.assertEqual(self.verdict({found["id"]: found}, name), verdict)

    def test_slow_start_takes_so_long(self):
        self.assertAlmostEqual(must.t_ramp(1e9, 350, 1), 4.4, delta=0.1)
        self.assertAlmostEqual(must.t_ramp(1e9, 350, 8), 3.35, delta=0.1)


class Record(unittest.TestCase):
    def test_the_newest_result_of_a_scenario_is_kept_and_found_again(self):
        with tempfile.TemporaryDirectory() as work:
            options = types.SimpleNamespace(results=f"{work}/results", scale=1.0)
            results = record.Results(options, {"date": "d", "commit": "c", "sysctls": {}})
            self.assertEqual(record.load_all(options.results), {})
            one = scenarios.selected(["b-10-file"])[0]
            for seconds in (1.0, 2.0):
                found = results.begin(one, 10, 1)
                results.add(found, "renkei", 0, {"seconds": seconds, "trace": [[number, number] for number in range(11)]})
                results.keep(found)
            results.keep(results.begin(scenarios.selected(["b-350-file"])[0]))
            kept = record.load_all(options.results)
            self.assertEqual((list(kept), results.left_out), (["b-10-file"], ["b-350-file"]))
            self.assertEqual(kept["b-10-file"]["runs"],
                             [{"program": "renkei", "round": 0, "seconds": 2.0, "trace": [[0, 0], [5, 5], [10, 10]]}])

    def test_only_result_files_are_loaded(self):
        with tempfile.TemporaryDirectory() as work:
            for text in ("{", "[]", '{"format": 0}'):
                with open(f"{work}/r.json", "w") as out:
                    out.write(text)
                with self.assertRaises(measure.Fail):
                    record.load_all(work)

    def test_what_is_in_the_repository_can_be_shown(self):
        entries = record.load_all()
        self.assertTrue(report.tables(entries) and must.section(entries))

    def test_what_was_not_measured_or_is_older_is_missing(self):
        now = machine.commit()
        if now == "unknown":
            self.skipTest("not in a repository")
        chosen = scenarios.selected(["b-10"])
        done = {"b-10-file": {"commit": now}, "b-10-tiny": {"commit": "0000000"}}
        ids = lambda found: [one.id for one in found]  # noqa: E731
        self.assertEqual(ids(record.missing(chosen, done)), ["b-10-montage", "b-10-file-stock"])
        self.assertEqual(ids(record.missing(chosen, done, now.removesuffix("-dirty"))),
                         ["b-10-montage", "b-10-tiny", "b-10-file-stock"])
        with self.assertRaises(measure.Fail):
            record.missing(chosen, done, "no-such-commit")

    def test_a_cut_scenario_has_whole_rounds_only(self):
        runs = [run("a", 1.0), run("b", 1.0), {**run("a", 1.0), "round": 1}]
        for turn, left in ((1, 2), (0, 0)):
            found = entry(runs=list(runs))
            record.Results(None, None).cut(found, turn)
            self.assertEqual(len(found["runs"]), left)


class Counters(unittest.TestCase):
    # A second of nothing, ten seconds of 100 bytes, of which ten are headers; the file has 900 bytes.
    POINTS = [(0.0, 0), (1.0, 0)] + [(1.0 + number / 10, 10 * number) for number in range(1, 101)]

    def test_the_middle_is_neither_ramp_nor_end(self):
        self.assertAlmostEqual(measure.middle_rate(self.POINTS, 900), 90.0)
        self.assertEqual(measure.middle_rate([(0.0, 0), (1.0, 0)], 900), 0.0)

    def test_the_largest_second_is_found_between_samples(self):
        self.assertAlmostEqual(measure.largest_window(self.POINTS, 900), 90.0)
        burst = [(0.0, 0), (1.0, 100), (1.45, 145), (1.55, 205), (3.0, 350)]
        self.assertAlmostEqual(measure.largest_window(burst, 350), 150.0, delta=0.1)

    def test_ss_is_read(self):
        line = ('ESTAB 0 0 10.0.0.1:5000 10.0.0.2:17512 users:(("renkei",pid=7,fd=9)) cubic wscale:10,10 rto:551 '
                'bytes_sent:99 bytes_retrans:3 bytes_acked:90 segs_out:2\nTIME-WAIT 0 0 10.0.0.1:1 10.0.0.2:2\n')
        self.assertEqual(streams.parse(line), {("10.0.0.1:5000", "10.0.0.2:17512"):
                                               {"process": 7, "control": "cubic", "acked": 90, "resent": 3}})

    def samples(self, *rates):
        """Sockets that carry so many bytes each second, for a minute."""
        return [(float(at), {(str(one), "p"): {"process": one, "acked": int(rate * at)} for one, rate in enumerate(rates)})
                for at in range(61)]

    def test_the_largest_streams_are_compared(self):
        found, seconds = streams.rates(self.samples(100, 80, 1), 2, 30)
        self.assertEqual(([round(rate) for rate in sorted(found)], seconds), ([80, 100], 30.0))
        self.assertEqual(streams.rates(self.samples(100, 80), 2, 90, 10)[1], 48.0)
        with self.assertRaises(measure.Fail):
            streams.rates([], 1)

    def test_two_jobs_are_compared_while_both_run(self):
        ended = [types.SimpleNamespace(seconds=seconds, error=None) for seconds in (40.0, 50.0)]
        found = streams.share_of_two(self.samples(300, 100), [{0}, {1}], [0.0, 3.0], ended)
        self.assertEqual((found["rates"], found["jain"], found["window"]), ([300, 100], 0.8, 37.0))
        self.assertIn("error", streams.share_of_two(self.samples(1, 1), [{0}, {1}], [0.0, 45.0], ended))

    def test_a_flow_counts_while_the_copy_runs(self):
        points = [(at, {("a", "10.0.0.2:17513"): {"process": 1, "acked": int(1000 * at)},
                        ("b", "10.0.0.2:5201"): {"process": 2, "acked": int(9000 * at)}}) for at in range(40)]
        intervals = [(100, True)] * 8 + [(400, False)] * 12
        found = sharing.shares(points, 17513, 5.0, 280, intervals, 20)
        self.assertEqual(found, {"rate": 100, "ours": 8000, "window": 8})
        with self.assertRaises(measure.Fail):
            sharing.shares(points, 17513, 5.0, 280, [(1, True)] * 3 + [(2, False)] * 17, 20)


class Machine(unittest.TestCase):
    def test_memory_is_written_to_and_given_back(self):
        machine.warm(0.001)


@unittest.skipIf(os.geteuid(), "control groups need root")
class Measure(unittest.TestCase):
    def setUp(self):
        try:
            self.group = measure.Group("test")
        except (measure.Fail, OSError) as error:
            self.skipTest(str(error))
        self.addCleanup(self.group.close)

    def spend(self, line, limit):
        with tempfile.NamedTemporaryFile() as log:
            return measure.spend([*self.group.enter(), "sh", "-c", line], [self.group], lambda: 0.0, limit, log.name)

    def test_time_and_failure_of_a_command_are_seen(self):
        run = self.spend("i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done", 60)
        self.assertIsNone(run.error)
        self.assertTrue(0 < run.cpu <= run.seconds * 1.5)
        self.assertGreater(measure.own_memory(os.getpid()), 1 << 20)
        self.assertEqual(self.spend("echo why >&2; exit 3", 60).error, "status 3: why")

    def test_a_command_over_its_limit_is_stopped(self):
        run = self.spend("sleep 60 & sleep 60", 0.3)
        self.assertIn("limit", run.error)
        self.assertLess(run.seconds, 30)
        self.group.stop()
        self.assertEqual(self.group.processes(), [])


if __name__ == "__main__":
    unittest.main()
