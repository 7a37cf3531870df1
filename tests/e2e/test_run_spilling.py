"""Jobs that share machines and need more memory than there is: their samples lie on disk until their turn."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.e2e

APP = '''\
"""Averages of wide samples, with a state of each that turns change."""

import os
import time

import numpy as np

from hpcbal.paramserver.api import App, Table


class Wide:
    num_samples = 4000
    facts = {}

    def read(self, samples):
        rows = [np.random.default_rng(int(sample)).integers(0, 9, 100) for sample in samples]
        return {"x": np.stack(rows).astype(float)}


def wide():
    return Wide()


class Averages(App):
    def __init__(self, source, pace_s=0.0):
        super().__init__(source)
        self.pace_s = pace_s

    def tables(self):
        return [Table("means", 100, 1)]

    def initial_state(self, columns, rng):
        return {"seen": np.zeros(len(columns["x"]), np.int64)}

    def compute(self, batch, parameters):
        time.sleep(self.pace_s)
        batch.state["seen"] += batch.epoch + 1
        return {"means": batch.columns["x"].sum(axis=0)[:, np.newaxis]}

    def objective(self, batch, parameters):
        return {"seen": float(batch.state["seen"].sum()), "total": float(parameters["means"].sum())}

    def metrics(self, sums):
        return dict(sums)
'''
NAMES = ("one", "two", "three", "four")
SAMPLES_BYTES = 4000 * 808


def job_of(name: str, **args: Any) -> dict[str, Any]:
    return {
        "name": name,
        "app": "wide:Averages",
        "args": args,
        "data": {"dataset": "wide:wide"},
        "blocks": {"data": 40},
        "mini_batch": 400,
        "stop": {"max_epochs": 3},
    }


@pytest.fixture
def crowded(lab):
    """Four jobs on two machines, each of which can hold the samples of 1.3 of them."""
    (lab.folder / "wide.py").write_text(APP, encoding="utf-8")

    def write(**changes: Any) -> None:
        config = {
            "kind": "jobs",
            "jobs": [job_of(name) for name in NAMES],
            "schedule": {"paradigm": "naive", "groups": [{"jobs": list(NAMES), "machines": 2}]},
            "memory_per_node": int(SAMPLES_BYTES * 4 / 2 / 3),
            "slots": {"per_node": 2},
            "checkpoint": {"interval_s": 0.0},
            "output": {"dir": "out"},
            **changes,
        }
        (lab.folder / "jobs.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")

    lab.write = write
    write()
    return lab


def records_of(out: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Of each job, its epochs with what depends on samples and their states."""
    found = {}
    for name in NAMES:
        lines = (out / "jobs" / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        found[name] = [(line["epoch"], line["seen"], line["total"]) for line in map(json.loads, lines)]
    return found


def test_jobs_that_need_three_times_the_memory_run_together_on_disk_and_go_on_after_a_kill(crowded):
    local = crowded.folder / "local"
    local.mkdir()
    crowded.write(
        jobs=[job_of(name, pace_s=0.02) for name in NAMES],
        spill={"directory": str(local)},
    )
    running = crowded.start("run", "jobs.yaml")
    running.until(lambda: len(crowded.events("job-saved")) >= 4, "checkpoints")
    running.signal_rank(1, signal.SIGKILL)
    assert running.wait().code not in (0, 75)
    assert not list(local.iterdir())
    done = crowded.run("run", "jobs.yaml")
    assert done.code == 0, done
    for epochs in records_of(crowded.out).values():
        assert epochs == [
            (1, 4000.0, epochs[0][2]),
            (2, 12000.0, 2 * epochs[0][2]),
            (3, 24000.0, 3 * epochs[0][2]),
        ]
    assert not list(local.iterdir())
    lines = crowded.events("job-spilled")
    assert {line.job for line in lines} <= set(NAMES)
    assert lines
    assert all(line.most_bytes > 0 and line.stop_s >= 0 and line.read_s > 0 for line in lines)
    used = crowded.events("machines-used")[-1]
    assert max(used.memory_bytes) <= SAMPLES_BYTES * 4 / 2 / 3
    assert [len(group.jobs) for line in crowded.events("jobs-grouped")[:1] for group in line.groups] == [4]
