"""Tests of the benchmark's own parts: `python3 -m unittest bench.tests`."""

import os
import statistics
import tempfile
import tomllib
import types
import unittest
import xml.etree.ElementTree

from bench import data, measure, record, report, scenarios, svg
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


class Scenarios(unittest.TestCase):
    def test_ids_are_unique_and_programs_known(self):
        ids = [one.id for one in scenarios.every()]
        self.assertEqual(len(ids), len(set(ids)))
        self.assertFalse({name for one in scenarios.every() for name in one.peers} - PEERS.keys())
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


class Peers(unittest.TestCase):
    def test_buffers_are_the_kernels_own_with_stock_settings(self):
        network = types.SimpleNamespace(address=lambda site: f"address-{site}")
        for kernel, count in (("tuned", 1), ("stock", 0)):
            with tempfile.TemporaryDirectory() as work:
                stage = Stage(network, "one", "two", work, work, work, [], "renkei", kernel)
                for name in ("gridftp", "lftp"):
                    line = " ".join(PEERS[name]().copy(stage, "item", work))
                    self.assertEqual(line.count("67108864"), count, line)


def result():
    """Two programs and a floor; the third program fails, the fourth is not there."""
    def run(name, seconds, **more):
        return {"program": name, "round": 0, "seconds": seconds, "cpu": 2.0, "machine": 3.0, "wire": 1.0,
                "sync_seconds": 0.5, "received": 0, **more}

    facts = {"version": "1 | 2", "about": "", "direction": "push", "encrypted": False, "checks": "", "durable": "no"}
    runs = [run("renkei", 10.0), run("renkei", 8.0), run("renkei", 40.0), run("slow", 20.0), run("RAW", 5.0),
            run("broken", 3.0, error="status 1: no\nroute")]
    entry = {"id": "x", "title": "", "path": "p", "limit": 2e8, "rate": 1e9, "rtt_ms": 1, "loss": 0, "kernel": "tuned",
             "data": "d", "bytes": 10**9, "files": 1, "paper": ["was 1"], "plot": ["rtt", 1], "runs": runs,
             "checks": {"rtt_ms": 1, "iperf_bps": 1.6e9}, "absent": {"gone": "not installed"}, "commands": {}}
    machine = {"date": "", "commit": "", "kernel": "", "processor": "", "cores": 2, "memory_gib": 1, "file_system": "",
               "sysctls": {}}
    return {"format": record.FORMAT, "machine": machine, "kernel_settings": {}, "scenarios": [entry], "matrices": [],
            "options": {"rounds": 1, "scale": 1}, "left_out": ["late"], "failed": [],
            "programs": {"renkei": {**facts, "durable": "always"}, "slow": facts, "RAW": facts}}


class Report(unittest.TestCase):
    def test_ratios_failures_and_absences_are_shown(self):
        page = "\n".join(report.tables(result()))
        self.assertIn("| **renkei** | 10.00 | 8.00 | 40.00 | 100.0 | 0.80 | 2.05 | 0.50 | 2.00 | 2.00 | 0.50 |", page)
        self.assertIn("| slow | 20.00 | 20.00 | 20.00 | 50.0 | 0.40 | 1.00 |", page)
        self.assertIn("| x | 100.0 | 0.50 | slow | 48.8 | **2.05** |", page)
        self.assertIn("| RAW | 5.00 | 5.00 | 5.00 | 200.0 | 1.60 |  | 1.00 |", page)
        self.assertIn("broken, round 1, after 3.0 s: status 1: no route", page)
        self.assertIn("gone: did not take part, not installed", page)
        self.assertIn("paper: was 1", page)
        self.assertIn("(1.00 of the limit)", page)
        self.assertIn("for want of time: late", page)

    def test_a_matrix_has_the_papers_figures_beside(self):
        lines = report.matrix({"file": "f", "rtt_ms": {"kek tkb": 0.8}, "mbytes_per_s": {"nagoya tkb": 4.9}})
        self.assertTrue(any(line.startswith("| kek |") and line.endswith("0.8 (0.81) |") for line in lines))
        self.assertTrue(any(line.startswith("| nagoya |") and line.endswith("4.9 (5) |") for line in lines))

    def test_only_result_files_are_loaded(self):
        with tempfile.TemporaryDirectory() as work:
            for text in ("{", "[]", '{"format": 0}'):
                with open(f"{work}/r", "w") as out:
                    out.write(text)
                with self.assertRaises(measure.Fail):
                    record.load(f"{work}/r")

    def test_a_plot_is_xml_and_stays_inside(self):
        found = report.plots(result())
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
