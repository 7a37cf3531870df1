"""`hpcbal profile --operations` as a user runs it, and the forecast from its trace."""

from __future__ import annotations

import json
import signal

import pytest
import yaml

from hpcbal.forecast.trace_file import read_trace

pytestmark = pytest.mark.e2e

APP = '''\
"""A dense table and one of rows; computing takes a moment, and fails on request."""

import time

import numpy as np

from hpcbal.paramserver.api import App, Table


class Points:
    num_samples = 60
    facts = {}

    def read(self, samples):
        return {"x": np.zeros((len(samples), 2))}


def points():
    return Points()


class Paced(App):
    def __init__(self, source, pace_s=0.002, fails=False):
        super().__init__(source)
        self.pace_s, self.fails, self.turns = pace_s, fails, 0

    def tables(self):
        return [Table("weights", 50, 20), Table("rows", 12, 3, "int64", "sparse")]

    def needs(self, batch):
        return {"rows": np.unique(batch.samples % 12)}

    def compute(self, batch, parameters):
        self.turns += 1
        if self.fails and self.turns == 3:
            raise ValueError("no more")
        time.sleep(self.pace_s)
        return {"weights": np.ones((50, 20)), "rows": np.ones((len(self.needs(batch)["rows"]), 3), np.int64)}

    def objective(self, batch, parameters):
        return {"nothing": 0.0}

    def metrics(self, sums):
        return dict(sums)
'''


@pytest.fixture
def job(lab):
    (lab.folder / "own.py").write_text(APP, encoding="utf-8")

    def write(**changes):
        config = {
            "kind": "paramserver",
            "app": "own:Paced",
            "data": {"dataset": "own:points"},
            "mini_batch": 10,
            "consistency": "async",
            "stop": {"max_epochs": 3},
            "slots": {"per_node": 3},
            "output": {"dir": "out"},
            **changes,
        }
        (lab.folder / "job.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")

    lab.write_job = write
    write()
    return lab


def test_a_job_is_profiled_forecast_and_then_run(job):
    """More ranks than needed stand by; a second profile replaces the first one."""
    done = job.run("profile", "--operations", "job.yaml", "--steps", "3", num_ranks=4)
    assert done.code == 0, done
    assert read_trace(job.out / "operations.jsonl").num_steps == 3
    done = job.run("profile", "--operations", "job.yaml", "--steps", "20")
    assert done.code == 0, done
    assert "1 worker, 1 server: 20 steps after 5 to warm up" in done.out
    assert "operations.jsonl: 20 steps of 10 samples, 8 operations; a step computes" in done.out
    trace = read_trace(job.out / "operations.jsonl")
    assert (trace.num_steps, trace.samples_per_step, trace.splits) == (20, 10, True)
    assert not (job.out / "results.csv").exists()
    shown = job.run_here(
        "forecast", "job.yaml", "--workers", "1-3", "--servers", "1,2", "--bandwidth", "10MB/s", "--json"
    )
    assert shown.code == 0, shown
    rows = json.loads(shown.out)["rows"]
    assert [(row["workers"], row["servers"]) for row in rows] == [
        (workers, servers) for servers in (1, 2) for workers in (1, 2, 3)
    ]
    machines = [{"count": 2, "bandwidth": "10MB/s"}]
    job.write_job(machines=machines, workers=1, servers=1, tune={"enabled": False}, slots={"per_node": 2})
    plan = job.run_here("plan", "job.yaml", "--json")
    assert plan.code == 0, plan
    planned = json.loads(plan.out)["forecast"]
    ran = job.run("run", "job.yaml")
    assert ran.code == 0, ran
    assert f"forecast: {planned['samples_per_s']['value']:.4g} samples/s (" in ran.out
    report = job.run_here("report", "out", "--json")
    assert report.code == 0, report
    (rate,) = json.loads(report.out)["rates"]
    assert rate["planned"] == planned["samples_per_s"]["value"]
    assert rate["measured"] > 0


def test_ctrl_c_ends_it_without_a_trace(job):
    job.write_job(args={"pace_s": 0.2})
    running = job.start("profile", "--operations", "job.yaml", "--steps", "1000")
    running.until(lambda: len(running.pids()) == 3, "ranks")
    running.until(lambda: "to warm up" in (job.folder / ".stdout").read_text(), "start")
    running.process.send_signal(signal.SIGINT)
    done = running.wait()
    assert done.code == 75, done
    assert "stopping the profiling run after the current turn" in done.err
    assert "no trace was written" in done.err
    assert not (job.out / "operations.jsonl").exists()


def test_an_app_that_raises_ends_it_with_a_sentence(job):
    job.write_job(args={"fails": True})
    done = job.run("profile", "--operations", "job.yaml")
    assert done.code == 3, done
    assert "ValueError: no more" in done.err, done
    assert not (job.out / "operations.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--set", "consistency=sync"], "consistency: got sync, allowed with --operations: async"),
        (["--steps", "0"], "got '0', allowed: a whole number, 1 or more"),
    ],
)
def test_wrong_input_is_refused_before_ranks_start(job, arguments, text):
    done = job.run_alone("profile", "--operations", "job.yaml", *arguments)
    assert (done.code, text in done.err) == (2, True), done


def test_steps_are_refused_without_operations(job):
    done = job.run_alone("profile", "job.yaml", "--steps", "5")
    assert done.code == 2, done
    assert "--steps: works with --operations only" in done.err


def test_without_a_trace_the_forecast_says_how_to_record_one(job):
    done = job.run_here("forecast", "job.yaml", "--bandwidth", "1Gbps")
    assert done.code == 2, done
    assert "record it with 'hpcbal profile job.yaml --operations'" in done.err
