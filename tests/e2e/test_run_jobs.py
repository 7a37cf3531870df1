"""Many parameter-server jobs on the same machines: to their end, stopped, killed, failing."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from hpcbal.paramserver.alone import train_alone

pytestmark = pytest.mark.e2e

APP = '''\
"""Least squares by SGD; misbehaves on request."""

import os
import time

import numpy as np

from hpcbal.paramserver.api import App, Table


class Points:
    num_samples = 60
    facts = {"num_features": 5}

    def read(self, samples):
        rows = [np.random.default_rng(int(sample)).normal(size=6) for sample in samples]
        return {"x": np.stack(rows)[:, :5], "y": np.stack(rows)[:, 5]}


def points(trouble=""):
    if trouble:
        raise OSError("no such file")
    return Points()


class Squares(App):
    def __init__(self, source, rate=0.05, trouble="", pace_s=0.0):
        super().__init__(source)
        self.rate, self.trouble, self.pace_s = rate, trouble, pace_s

    def tables(self):
        return [Table("weights", 5, 1)]

    def initial_state(self, columns, rng):
        return {"seen": np.zeros(len(columns["y"]), np.int64)}

    def compute(self, batch, parameters):
        if batch.epoch == 2 and self.trouble == "raises":
            raise ValueError("no more")
        if batch.epoch == 2 and self.trouble == "dies":
            os._exit(9)
        if batch.epoch == 2 and self.trouble == "hangs":
            time.sleep(600)
        time.sleep(self.pace_s)
        batch.state["seen"] += 1
        x, weights = batch.columns["x"], parameters["weights"][:, 0]
        error = batch.columns["y"] - x @ weights
        return {"weights": self.rate * (error @ x)[:, np.newaxis] / batch.step_samples}

    def objective(self, batch, parameters):
        error = batch.columns["y"] - batch.columns["x"] @ parameters["weights"][:, 0]
        return {"squares": float(error @ error), "seen": float(batch.state["seen"].sum())}

    def metrics(self, sums):
        if self.trouble == "leaves":
            raise SystemExit(7)
        loss = float("nan") if self.trouble == "nan" else sums["squares"] / 60
        return {"loss": loss, "seconds" if self.trouble == "taken" else "visits": sums["seen"]}


class Wide(Squares):
    def __init__(self, source, num_columns, **args):
        super().__init__(source, **args)
        self.num_columns = num_columns

    def tables(self):
        return [Table("weights", 5, self.num_columns)]

    def compute(self, batch, parameters):
        return {"weights": np.tile(super().compute(batch, parameters)["weights"], self.num_columns)}
'''
EPOCHS = 6
RATES = {"slow": 0.01, "middle": 0.05, "fast": 0.2, "late": 0.1}


def job_of(name: str, **changes: Any) -> dict[str, Any]:
    pace = {"pace_s": 0.01, **changes.pop("args", {})}
    return {
        "name": name,
        "app": "own:Squares",
        "args": {"rate": RATES.get(name, 0.03), **pace},
        "data": {"dataset": "own:points"},
        "mini_batch": 10,
        "blocks": {"data": 32},  # as in `check_outcome`, on any number of machines
        "stop": {"max_epochs": EPOCHS},
        **changes,
    }


@pytest.fixture
def many(lab):
    (lab.folder / "own.py").write_text(APP, encoding="utf-8")

    def write(*more: dict[str, Any], **changes: Any) -> None:
        config = {
            "kind": "jobs",
            "jobs": [*(job_of(name) for name in ("slow", "middle", "fast")), *more],
            "slots": {"per_node": 4},
            "checkpoint": {"interval_s": 0.0},
            "output": {"dir": "out"},
            **changes,
        }
        (lab.folder / "jobs.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")

    lab.write = write
    write()
    return lab


def check_outcome(many, monkeypatch: pytest.MonkeyPatch, names=("slow", "middle", "fast")) -> None:
    """Every job equals one process: the metrics of each epoch once, and each sample once an epoch."""
    monkeypatch.syspath_prepend(many.folder)
    monkeypatch.delitem(__import__("sys").modules, "own", raising=False)
    import own

    for name in names:
        app = own.Squares(own.points(), RATES[name])
        _, wanted = train_alone(app, EPOCHS, mini_batch=10, seed=0, num_data_blocks=32)
        lines = (many.out / "jobs" / name / "metrics.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in lines]
        assert [line["epoch"] for line in found] == list(range(1, EPOCHS + 1))
        for line, metrics in zip(found, wanted, strict=True):
            assert line["loss"] == pytest.approx(metrics["loss"], rel=1e-10)
            assert line["visits"] == 60 * line["epoch"]


WIDE = {"wide-a": 500, "wide-b": 500, "big": 4000}
"""Columns by job. A table of 500 takes 20 KB, and a worker of it and two updates; two do not fit on a machine
together, and the big one nowhere."""


def test_jobs_share_machines_or_wait_for_memory_and_one_that_fits_nowhere_fails_at_once(many, monkeypatch):
    wide = [job_of(name, app="own:Wide", args={"num_columns": columns}) for name, columns in WIDE.items()]
    many.write(
        job_of("late", arrives_s=1.0),
        *wide,
        schedule={"paradigm": "harmony"},
        memory_per_node=100_000,
        slots={"per_node": 3},
    )
    done = many.run("run", "jobs.yaml")
    assert done.code == 3, done
    assert "big: memory_per_node: got 100,000 bytes, but big needs about" in done.err, done
    where = "on each of 3 machines with all of its samples on disk; allow more memory"
    assert where in done.err, done
    check_outcome(many, monkeypatch, (*RATES,))
    assert many.status()["kind"] == "jobs"
    shown = many.run_here("status", "out")
    assert shown.code == 0, shown
    assert "7 jobs: 6 done, 1 failed" in shown.out, shown
    states = {name: row.state for name, row in many.results().items()}
    assert states == dict.fromkeys([*RATES, *WIDE], "done") | {"big": "failed"}
    for line in many.events("jobs-grouped"):
        machines = [rank for group in line.groups for rank in group.machines]
        assert len(machines) == len(set(machines)) <= 3
        assert not any({"wide-a", "wide-b"} <= set(group.jobs) for group in line.groups)
    (used,) = many.events("machines-used")
    assert used.machines == (1, 2, 3)
    assert all(0 <= share <= 1 for share in (*used.cpu, *used.network))
    assert all(0 < num_bytes <= 100_000 for num_bytes in used.memory_bytes), used
    assert max(used.memory_bytes) > 40_000
    page = (many.out / "report.html").read_text(encoding="utf-8")
    assert 'id="groups"' in page
    assert 'id="machines"' in page


def test_stopped_and_killed_every_job_goes_on_to_the_same_end(many, monkeypatch):
    """The scheduler is killed in the next test."""
    jobs = [job_of(name, args={"pace_s": 0.05}) for name in ("slow", "middle", "fast")]
    many.write(jobs=jobs, slots={"per_node": 2})
    running = many.start("run", "jobs.yaml")
    running.until(lambda: many.out.exists() and len(many.events("job-epoch")) >= 2, "first epochs")
    running.process.send_signal(signal.SIGTERM)
    done = running.wait()
    assert done.code == 75, done
    assert "run the same command again to resume" in done.err
    assert many.events()[-1].outcome == "suspended"
    saved = len(many.events("job-saved"))
    running = many.start("run", "jobs.yaml")
    running.until(lambda: len(many.events("job-saved")) > saved, "checkpoint")
    running.signal_rank(2, signal.SIGKILL)
    done = running.wait()
    assert done.code == 1, done
    assert "died without an error message" in done.err, done
    assert "Traceback" not in done.err, done
    done = many.run("run", "jobs.yaml")
    assert done.code == 0, done
    check_outcome(many, monkeypatch)


def test_jobs_are_submitted_to_a_run_that_is_under_way_killed_or_over(many, monkeypatch):
    """Each submitted job is known to all later starts of the run, whatever is killed in between."""
    many.write(jobs=[job_of("slow", args={"pace_s": 0.3})], slots={"per_node": 2})
    away = many.folder / "away"
    away.mkdir()
    (away / "other.py").write_text(APP, encoding="utf-8")

    def submit(name: str, **changes: Any) -> Any:
        job = job_of(name, app="other:Squares", data={"dataset": "other:points"}, **changes)
        content = {"kind": "jobs", "jobs": [job]}
        (away / f"{name}.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
        return many.run_here("submit-job", "out", f"away/{name}.yaml")

    running = many.start("run", "jobs.yaml")
    running.until(lambda: many.out.exists() and many.events("job-saved"), "checkpoint")
    done = submit("middle", args={"pace_s": 0.3})
    assert done.code == 0, done
    running.until(lambda: {line.job for line in many.events("job-saved")} == {"slow", "middle"}, "middle")
    running.until(lambda: {job["name"] for job in many.status()["jobs"]} == {"slow", "middle"}, "status")
    running.signal_rank(0, signal.SIGKILL)
    assert running.wait().code not in (0, 75)
    assert submit("fast").code == 0
    again = many.run("run", "jobs.yaml")
    assert again.code == 0, again
    check_outcome(many, monkeypatch)
    assert {name: row.state for name, row in many.results().items()} == dict.fromkeys(
        ("slow", "middle", "fast"), "done"
    )
    assert "from the run's next start on" in submit("late").out
    more = many.run("run", "jobs.yaml", "--set", f"jobs.slow.stop.max_epochs={EPOCHS + 2}")
    assert more.code == 0, more
    check_outcome(many, monkeypatch, ("middle", "fast", "late"))
    assert {name: row.epochs for name, row in many.results().items()} == {
        name: EPOCHS + 2 * (name == "slow") for name in RATES
    }
    assert [line.job for line in many.events("job-submitted")] == ["middle", "fast", "late"]
    for name, epochs in (("slow", EPOCHS + 2), ("late", EPOCHS)):  # of the file, and submitted
        exported = many.run_here("export", "out", name, "--to", f"{name}.npz")
        assert exported.code == 0, exported
        assert f":Squares after {epochs} epochs" in exported.out
        with np.load(many.folder / f"{name}.npz") as found:
            assert set(found) == {"tables/weights", "states/seen"}
            np.testing.assert_array_equal(found["states/seen"], epochs)
    for name, text in (
        ((), "which job? Give its NAME, allowed: slow,"),
        (("no",), "has no job 'no', allowed"),
    ):
        refused = many.run_here("export", "out", *name, "--to", "all.npz")
        assert (refused.code, text in refused.err) == (2, True), refused


FAILURES: dict[str, tuple[dict[str, Any], str]] = {
    "raises": ({"args": {"trouble": "raises"}}, "Squares.compute: own.py:39: ValueError: no more"),
    "nan": ({"args": {"trouble": "nan"}}, "loss is nan after epoch 1"),
    "leaves": ({"args": {"trouble": "leaves"}}, "Squares.metrics: own.py:56: SystemExit: 7"),
    "taken": (
        {"args": {"trouble": "taken"}},
        "Squares.metrics: got 'seconds', which records use for something else, allowed: any name",
    ),
    "data": (
        {"data": {"dataset": "own:points", "args": {"trouble": "yes"}}},
        "data.dataset own:points: cannot be opened: own.py:22: OSError: no such file",
    ),
    "blocks": ({"blocks": {"data": 100}}, "blocks.data: got 100, allowed: auto, or at most the number"),
    "monitor": (
        {"stop": {"max_epochs": 4, "monitor": "rmse", "target": 1.0}},
        "stop.monitor: got 'rmse', but the app has the metrics: loss, visits",
    ),
}
"""A fault of each job, and the words of its error."""


def test_one_jobs_failure_is_its_own(many, monkeypatch):
    """Each fails for a reason of its own, and the others train to their end beside them."""
    failing = [job_of(name, **changes) for name, (changes, _) in FAILURES.items()]
    many.write(*failing, slots={"per_node": 3})
    done = many.run("run", "jobs.yaml")
    assert done.code == 3, done
    assert "Traceback" not in done.err, done
    for name, (_, text) in FAILURES.items():
        assert f"{name}: {text}" in done.err, done
    assert {name for name, row in many.results().items() if row.state == "failed"} == set(FAILURES)
    check_outcome(many, monkeypatch)
    again = many.run("run", "jobs.yaml")
    assert again.code == 3, again
    assert "--retry-failed" in again.out + again.err


def test_a_rank_that_ends_itself_ends_the_start(many):
    """Its own exit code is another way to end, for mpirun, than a signal."""
    many.write(job_of("bad", args={"trouble": "dies"}), slots={"per_node": 2})
    done = many.run("run", "jobs.yaml")
    assert done.code == 1, done
    assert "died without an error message" in done.err, done
    assert "Traceback" not in done.err, done


def test_a_job_that_hangs_fails_and_the_others_end(many, monkeypatch):
    many.write(
        job_of("bad", args={"trouble": "hangs"}),
        stall_timeout_s=5.0,
        schedule={"paradigm": "naive"},
        slots={"per_node": 2},
    )
    done = many.run("run", "jobs.yaml")
    assert done.code == 3, done
    assert "bad: no sign of life for 5 s (stall_timeout_s) of a computation on rank" in done.err, done
    assert "Traceback" not in done.err, done
    assert {name for name, row in many.results().items() if row.state == "failed"} == {"bad"}
    assert any("in compute" in path.read_text("utf-8") for path in many.out.glob("logs/rank-*.log"))
    check_outcome(many, monkeypatch)


def test_wrong_groups_are_refused_before_anything_trains(many):
    groups = [{"jobs": ["slow"], "machines": 2}, {"jobs": ["fast", "middle"], "machines": 1}]
    many.write(schedule={"paradigm": "naive", "groups": groups}, slots={"per_node": 2})
    done = many.run("run", "jobs.yaml")
    assert done.code == 2, done
    assert "schedule.groups: got groups of 3 machines, but the run has 2" in done.err, done
    assert not Path(many.out / "jobs").exists()
