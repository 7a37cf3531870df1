"""A parameter-server job as a user runs it: to its end, stopped, killed, failing, and wrongly started."""

from __future__ import annotations

import gzip
import json
import re
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import yaml

from hpcbal.cli.main import main
from hpcbal.paramserver.alone import train_alone
from hpcbal.paramserver.apps import samples
from hpcbal.runtime.jobs.checkpoint import DATA, PARAMETERS, read_blocks, read_saved

pytestmark = pytest.mark.e2e

APP = '''\
"""Least squares by SGD with a count of visits per sample; misbehaves on request."""

import time

import numpy as np

from hpcbal.paramserver.api import App, Table, Update


class Points:
    num_samples = 60
    facts = {"num_features": 5}

    def read(self, samples):
        rows = [np.random.default_rng(int(sample)).normal(size=6) for sample in samples]
        return {"x": np.stack(rows)[:, :5], "y": np.stack(rows)[:, 5]}


def points():
    return Points()


class Squares(App):
    def __init__(self, source, rate=0.05, trouble="", pace_s=0.0):
        super().__init__(source)
        self.rate, self.trouble, self.pace_s = rate, trouble, pace_s

    def tables(self):
        return [Table("weights", 5, 1), Table("visits", 7, 1, "int64", "sparse")]

    def initial_state(self, columns, rng):
        return {"seen": np.zeros(len(columns["y"]), np.int64), "z": rng.normal(size=len(columns["y"]))}

    def needs(self, batch):
        return {"visits": np.unique(batch.samples % 7)}

    def compute(self, batch, parameters):
        if batch.epoch == 2 and self.trouble == "raises" and 0 in batch.samples:
            raise ValueError("no more")
        if batch.epoch == 2 and self.trouble == "hangs" and 0 in batch.samples:
            time.sleep(600)
        time.sleep(self.pace_s)
        batch.state["seen"] += 1
        x, weights = batch.columns["x"], parameters["weights"][:, 0]
        error = batch.columns["y"] - x @ weights
        rows, counts = np.unique(batch.samples % 7, return_counts=True)
        delta = self.rate * (error @ x)[:, np.newaxis] / batch.step_samples
        return {"weights": delta, "visits": counts[:, np.newaxis]}

    def objective(self, batch, parameters):
        error = batch.columns["y"] - batch.columns["x"] @ parameters["weights"][:, 0]
        return {"squares": float(error @ error), "visits": float(batch.state["seen"].sum())}

    def metrics(self, sums):
        return {"loss": sums["squares"] / 60, "visits": sums["visits"]}


class Heavy(Squares):
    """The same, with a table that takes long to move; some of its rows count visits of a sample each."""

    def tables(self):
        return [*super().tables(), Table("ballast", 600, 200, "int64", "sparse")]

    def compute(self, batch, parameters):
        updates = super().compute(batch, parameters)
        rows = 10 * np.sort(batch.samples)
        return {**updates, "ballast": Update(np.ones((len(rows), 200), np.int64), rows)}
'''
EPOCHS = 6
PAIR = {"workers": 1, "servers": 1, "slots": {"per_node": 2}, "blocks": {"data": 24}}  # as in `alone`
"""The fewest ranks, for what does not depend on their number."""


@pytest.fixture
def job(lab):
    (lab.folder / "own.py").write_text(APP, encoding="utf-8")

    def write(**changes: Any) -> None:
        config = {
            "kind": "paramserver",
            "app": "own:Squares",
            "args": {},
            "data": {"dataset": "own:points"},
            "mini_batch": 10,
            "stop": {"max_epochs": EPOCHS},
            "slots": {"per_node": 3},
            "workers": 2,
            "servers": 1,
            "checkpoint": {"interval_s": 0.0},
            "output": {"dir": "out"},
            **changes,
        }
        (lab.folder / "job.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")

    lab.write_job = write
    write()
    return lab


def alone(folder: Path, monkeypatch: pytest.MonkeyPatch, app: str) -> Any:
    """Train the job in one process; return the tables, and the metrics of each epoch."""
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(__import__("sys").modules, "own", raising=False)
    import own

    return train_alone(getattr(own, app)(own.points()), EPOCHS, mini_batch=10, seed=0, num_data_blocks=24)


def metrics_of(job) -> list[dict[str, float]]:
    lines = (job.out / "jobs" / "job" / "metrics.jsonl").read_text().splitlines()
    keys = ("epoch", "loss", "visits", "num_workers")
    return [{key: json.loads(line)[key] for key in keys} for line in lines]


def check_outcome(job, monkeypatch: pytest.MonkeyPatch, app: str = "Squares") -> None:
    """The run equals one process: metrics of every epoch once, the parameters, each sample once an epoch."""
    trained, wanted = alone(job.folder, monkeypatch, app)
    found = metrics_of(job)
    assert [line["epoch"] for line in found] == list(range(1, EPOCHS + 1))
    for line, metrics in zip(found, wanted, strict=True):
        assert line["loss"] == pytest.approx(metrics["loss"], rel=1e-10)
        assert line["visits"] == 60 * line["epoch"]
    folder = job.out / "jobs" / "job"
    saved = read_saved(folder)
    assert saved is not None
    blocks = read_blocks(folder, saved, PARAMETERS, range(sum(saved.cut[PARAMETERS])))
    num_weights, num_visits, *_ = saved.cut[PARAMETERS]
    weights = np.concatenate([blocks[block]["values"] for block in range(num_weights)])
    np.testing.assert_allclose(weights, trained.values["weights"], rtol=1e-10)
    counts = [blocks[block]["values"] for block in range(num_weights, len(blocks))]
    assert sum(int(values.sum()) for values in counts[:num_visits]) == 60 * EPOCHS
    ballast = np.concatenate([np.zeros((0, 1)), *(values[:, :1] for values in counts[num_visits:])])
    assert sorted(set(ballast.ravel())) == ([0, EPOCHS] if len(ballast) else [])
    assert ballast.sum() == (60 * EPOCHS if len(ballast) else 0)
    data = read_blocks(folder, saved, DATA, range(saved.cut[DATA][0]))
    assert all((block["state/seen"] == EPOCHS).all() for block in data.values())


def test_a_job_runs_to_its_end_is_not_repeated_and_is_exported(job, monkeypatch):
    early = job.run_here("export", "out", "--to", "all.npz")
    assert early.code == 2, early
    job.write_job(tune={"enabled": False})  # or a worker would have other turns
    done = job.run("run", "job.yaml")
    assert done.code == 0, done
    assert "2 workers, 1 server; 60 samples" in done.out
    check_outcome(job, monkeypatch)
    check_timeline(job)
    assert [line.event for line in job.events()][:2] == ["run-started", "roles-assigned"]
    assert job.status()["kind"] == "paramserver"
    shown = job.run_here("status", "out")
    assert "job: done, loss" in shown.out, shown
    compared = job.run_here("compare", "out")
    assert compared.code == 0, compared
    assert "best loss" in compared.out
    assert "warning" not in compared.err
    assert (job.out / "report.html").exists()
    (row,) = job.results().values()
    assert (row.name, row.state, row.epochs, row.best_key) == ("job", "done", EPOCHS, "best_loss")
    again = job.run("run", "job.yaml")
    assert again.code == 0, again
    assert "already finished" in again.out
    assert job.events()[-1].event == "run-finished"
    check_exports(job, monkeypatch)


def check_exports(job, monkeypatch) -> None:
    """The arrays of the file are those of one process, and what cannot be exported is refused."""
    trained, _ = alone(job.folder, monkeypatch, "Squares")
    done = job.run_here("export", "out", "--to", "all.npz")
    assert done.code == 0, done
    assert "all.npz: own:Squares after 6 epochs" in done.out
    with np.load(job.folder / "all.npz") as found:
        assert set(found) == {"tables/weights", "tables/visits", "states/seen", "states/z"}
        for name, values in trained.values.items():
            np.testing.assert_allclose(found[f"tables/{name}"], values, rtol=1e-10)
        for name in ("seen", "z"):
            wanted = np.concatenate([block.state[name] for block in trained.data_blocks])
            np.testing.assert_allclose(found[f"states/{name}"], wanted, rtol=1e-10)
    for args, text in (
        (("--to", "all.npz"), "all.npz exists; choose another name, or replace it with --force"),
        (("--to", "all.h5"), "allowed: a file that ends in .npz"),
        (("--to", "all.keras"), "Squares has no Keras model"),
        (("other", "--to", "b.npz"), "has no job 'other', allowed: job"),
        (("--to", "b.npz", "--weights", "best"), "--weights: got best, allowed: last"),
    ):
        refused = job.run_here("export", "out", *args)
        assert (refused.code, text in refused.err) == (2, True), refused


def check_timeline(job) -> None:
    """Each worker shows its turns, and the server its work."""
    events = json.loads(gzip.decompress((job.out / "timeline.json.gz").read_bytes()))
    slices = [event for event in events if "cat" in event]
    kinds = {rank: [each["cat"] for each in slices if each["tid"] == rank + 1] for rank in (1, 2, 3)}
    for worker in (1, 2):
        assert kinds[worker].count("epoch") == EPOCHS
        assert kinds[worker].count("compute") == EPOCHS * 6
        assert {"load", "initialise", "objective", "checkpoint"} <= set(kinds[worker])
    assert {"serve", "checkpoint"} <= set(kinds[3])
    assert "compute" not in kinds[3]


def test_a_keras_model_trains_and_is_exported(job, monkeypatch):
    """One worker imports TensorFlow; tests/unit/paramserver/networks trains with several."""
    data = {
        "dataset": "hpcbal.paramserver.apps:samples",
        "args": {"dataset": "toys:images", "validation_fraction": 0.2},
    }
    job.write_job(
        app="hpcbal.paramserver.networks:KerasNetwork",
        args={"model": "hpcbal.models:mlp", "learning_rate": 0.1},
        data=data,
        mini_batch=32,
        consistency="async",
        stop={"max_epochs": 6},
        workers=1,
        slots={"per_node": 2},
    )
    done = job.run("run", "job.yaml")
    assert done.code == 0, done
    lines = (job.out / "jobs" / "job" / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    assert last["val_accuracy"] > 0.9
    monkeypatch.chdir(job.folder)
    monkeypatch.syspath_prepend(job.folder)
    monkeypatch.delitem(sys.modules, "toys", raising=False)
    assert main(["export", "out", "--to", "images.keras"]) == 0
    columns = samples(**data["args"]).read(np.arange(480))
    is_validation = columns["is_validation"]
    model = keras.saving.load_model(job.folder / "images.keras")
    found = model.predict(columns["samples"][is_validation], verbose=0).argmax(axis=1)
    accuracy = (found == columns["labels"][is_validation]).mean()
    assert accuracy == pytest.approx(last["val_accuracy"], abs=1e-6)


def test_whatever_ends_a_start_the_next_ones_reach_the_same_end(job, monkeypatch):
    """A stop, a damaged checkpoint, a full disk, and the death of the master, one start after the other.

    Kills of a server and of a worker are those of the tests below.
    """
    pair = {**PAIR, "args": {"pace_s": 0.1}, "tune": {"enabled": False}}  # each reads its own file again
    job.write_job(**pair)
    running = job.start("run", "job.yaml")
    running.until(lambda: job.out.exists() and len(job.events("job-epoch")) >= 1, "first epoch")
    running.process.send_signal(signal.SIGTERM)
    done = running.wait()
    assert done.code == 75, done
    assert job.events()[-1].outcome == "suspended"
    first = job.results()["job"]
    assert first.slot_seconds > first.wall_time_s > 0
    check_damaged(job)
    check_full_disk(job)
    running = start_until_saved(job)
    running.signal_rank(0, signal.SIGKILL)
    done = running.wait()
    assert done.code not in (0, 75), done
    assert "Traceback" not in done.err, done
    # Twice as many go on where these were; `args` must stay.
    job.write_job(args={"pace_s": 0.1}, workers=2, servers=2, slots={"per_node": 4}, blocks={"data": 24})
    done = job.run("run", "job.yaml")
    assert done.code == 0, done
    check_outcome(job, monkeypatch)
    row = job.results()["job"]  # of all starts
    assert row.wall_time_s > first.wall_time_s
    assert row.slot_seconds > first.slot_seconds
    best = min(metrics_of(job), key=lambda line: line["loss"])
    assert row.numbers["best_epoch"] == best["epoch"]
    saved = job.events("job-saved")
    assert [line.wall_s for line in saved] == sorted(line.wall_s for line in saved)


def start_until_saved(job) -> Any:
    """Start the job, and return once it has written a checkpoint."""
    known = len(job.events("job-saved"))
    running = job.start("run", "job.yaml")
    running.until(lambda: len(job.events("job-saved")) > known, "checkpoint")
    return running


def check_damaged(job) -> None:
    """A damaged file of a checkpoint is named in one sentence; mended, it is used."""
    (path,) = job.out.glob("jobs/job/checkpoint-*/executor-002/checkpoint.h5")
    whole = path.read_bytes()
    path.write_bytes(whole[:-60])
    done = job.run("run", "job.yaml")
    assert done.code not in (0, 3, 75), done
    assert "executor-002/checkpoint.h5: cannot be used" in done.err
    assert "Traceback" not in done.err
    assert job.status()["outcome"] == "suspended"
    path.write_bytes(whole)


def check_full_disk(job) -> None:
    """No file may grow beyond a limit: the next checkpoint cannot be written, as on a full disk."""
    running = start_until_saved(job)
    for pid in running.pids().values():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, 4096))
    done = running.wait()
    assert done.code == 2, done
    assert "Traceback" not in done.err, done
    assert "File too large" in done.err, done


def test_without_a_barrier_a_kill_costs_no_sample_and_repeats_none(job):
    """Losses depend on the order of pushes then. Visits do not: once an epoch for each sample, in the end.

    Rank 1 is a worker.
    """
    job.write_job(args={"pace_s": 0.15}, consistency={"stale": 2})
    running = job.start("run", "job.yaml")
    running.until(lambda: job.out.exists() and job.events("job-saved"), "checkpoint")
    running.signal_rank(1, signal.SIGKILL)
    done = running.wait()
    assert done.code not in (0, 75), done
    assert "Traceback" not in done.err, done
    done = job.run("run", "job.yaml")
    assert done.code == 0, done
    found = metrics_of(job)
    assert [line["epoch"] for line in found] == list(range(1, EPOCHS + 1))
    assert all(line["visits"] >= 60 * line["epoch"] for line in found)  # fast workers may be ahead
    assert found[-1]["visits"] == 60 * EPOCHS
    assert found[-1]["loss"] < found[0]["loss"]
    starts = [line for line in job.events() if line.event in ("run-started", "job-epoch")]
    between = [line.event for line in starts][1:]
    assert between.count("run-started") == 1
    assert between[0] == "job-epoch"  # the kill came after an epoch, so the next start resumed


def test_a_server_that_is_killed_amid_a_migration_costs_no_update(job, monkeypatch):
    """After two epochs the only server, rank 3, is taken back. All that it holds moves to rank 2, over slow
    links; rank 3 is killed when some blocks have moved, and others have not."""
    args = {"pace_s": 0.1}
    job.write_job(
        app="own:Heavy",
        **elastic(schedule=[{"after_epoch": 2, "use": 2}, {"after_epoch": 4, "use": "all"}])
        | {"slots": {"per_node": 3}, "args": args, "blocks": {"data": 24, "parameters": 24}},
        machines=[{"bandwidth": "400KB/s"}],
        tune={"enabled": False},
    )
    command = ("run", "job.yaml", "--log-level", "DEBUG")
    running = job.start(*command)
    moves = running.until(lambda: moved_blocks(job), "block that has moved")
    running.signal_rank(3, signal.SIGKILL)
    done = running.wait()
    assert done.code not in (0, 75), done
    assert "Traceback" not in done.err, done
    assert "2 executors (1 taken back) by executors.schedule" in done.out
    assert job.events("executors-changed")[0].executors == (1, 2)
    assert "reconfiguring:" in done.out
    assert 0 < moves <= moved_blocks(job) < 24  # so the migration was not over
    assert not any(line.parameter_blocks_moved for line in job.events("reconfigured"))
    assert job.events("roles-assigned")[0].parameter_blocks == (0, 0, 24)
    done = job.run(*command)
    assert done.code == 0, done
    assert "3 executors (1 more) by executors.schedule" in done.out
    assert job.events("executors-changed")[-1].executors == (1, 2, 3)
    assert roles_of(job)[-1] == {1, 2, 3}  # it has moved blocks again
    check_outcome(job, monkeypatch, "Heavy")


def moved_blocks(job) -> int:
    """Parameter blocks that have changed their owner in the last start, as the master has heard."""
    text = "".join(path.read_text(encoding="utf-8") for path in job.out.glob("logs/*rank-0*"))
    found = re.findall(r"BlocksMoved\(what='parameters', blocks=\(([^)]*)\)", text)
    return sum(len(re.findall(r"\d+", blocks)) for blocks in found)


@pytest.mark.parametrize(
    ("trouble", "code", "text"),
    [
        ("raises", 3, "Squares.compute: own.py:39: ValueError: no more"),
        ("hangs", 70, "no sign of life"),
    ],
)
def test_what_fails_is_one_sentence_and_the_exit_code(job, trouble, code, text):
    silence = {"stall_timeout_s": 3.0} if code == 70 else {}  # a busy machine may keep a rank silent so long
    job.write_job(args={"trouble": trouble}, **silence, **PAIR)
    done = job.run("run", "job.yaml")
    assert done.code == code, done
    assert text in done.err, done
    assert "Traceback" not in done.err, done
    if code == 3:
        assert job.events("job-failed")[-1].detail in done.err
        assert job.status()["jobs"][0]["state"] == "failed"
    if trouble == "raises":
        again = job.run("run", "job.yaml", num_ranks=3)
        assert again.code == 3, again
        assert "run the same command with --retry-failed" in again.err


def test_wrong_input_ends_before_training(job):
    job.write_job(**PAIR)
    done = job.run("run", "job.yaml", "--set", "servers=3")
    assert done.code == 2, done
    assert "workers: 1 and servers: 3 do not fit 2 executors" in done.err, done
    done = job.run("run", "job.yaml", num_ranks=2)
    assert done.code == 2, done
    assert "need at least 3 ranks" in done.err, done
    done = job.run("run", "job.yaml", "--set", "data.dataset=own:Squares")
    assert done.code == 2, done
    assert "Traceback" not in done.err, done
    assert not (job.out / "jobs").exists()


def test_it_configures_itself_and_the_results_stay(job, monkeypatch):
    """Five emulated executors start with one worker; the numbers are those of one process all the same."""
    machines = [{"count": 5, "seconds_per_sample": 0.004, "bandwidth": "50MB/s"}]
    job.write_job(
        workers=1,
        servers=4,
        slots={"per_node": 5},
        machines=machines,
        blocks={"data": 24},
        tune={"warm_up": 1, "min_turns": 2},
    )
    done = job.run("run", "job.yaml")
    assert done.code == 0, done
    check_outcome(job, monkeypatch)
    (first, *_) = job.events("reconfigured")
    assert first.predicted_gain > 0.3
    assert first.roles.count("worker") > 1
    assert "reconfiguring:" in done.out
    epochs = job.events("job-epoch")
    assert sum(worker.turns > 0 for worker in epochs[0].workers) >= 1
    # In the last epoch, exactly the workers work: those of its start, and of changes that end in it or later.
    lines = [line for line in job.events() if line.event in ("roles-assigned", "reconfigured", "job-epoch")]
    start = lines.index(epochs[-2])
    before = [line for line in lines[:start] if line.event != "job-epoch"][-1:]
    since = [line for line in lines[start:] if line.event != "job-epoch"]
    workers = [
        {rank for rank, role in enumerate(line.roles, 1) if role == "worker"} for line in [*before, *since]
    ]
    worked = {worker.executor for worker in epochs[-1].workers if worker.turns > 0}
    assert set.intersection(*workers) <= worked <= set.union(*workers)


def elastic(**executors: Any) -> dict[str, Any]:
    """Four executors, some of them in use; the first epochs take about 0.1 s each."""
    return {
        "args": {"pace_s": 0.02},
        "slots": {"per_node": 4},
        "blocks": {"data": 24},  # as in `alone`
        "workers": "auto",
        "servers": "auto",
        "executors": executors,
    }


def roles_of(job) -> list[set[int]]:
    """Ranks with a role at each start and after each reconfiguration, in order."""
    events = [e for e in job.events() if e.event in ("roles-assigned", "reconfigured")]
    return [{rank for rank, role in enumerate(e.roles, 1) if role != "standby"} for e in events]


def test_executors_come_and_go_as_a_file_says_and_the_job_goes_on_after_kills(job, monkeypatch):
    job.write_job(**elastic() | {"args": {"pace_s": 0.15}})  # so that the kill comes before the end
    running = job.start("run", "job.yaml")
    running.until(lambda: job.out.exists() and len(job.events("job-epoch")) >= 1, "first epoch")
    wrong = job.run_here("resize", "out", "1")
    assert (wrong.code, wrong.out) == (2, ""), wrong
    assert "got '1', allowed: all, a number of executors from 2 to 4, or ranks of 1 to 4" in wrong.err
    resized = job.run_here("resize", "out", "2,4")
    assert (resized.code, resized.out) == (0, "out: 2 of 4 executors, within seconds\n"), resized
    running.until(lambda: roles_of(job)[-1] == {2, 4}, "empty executors")
    running.signal_rank(3, signal.SIGKILL)
    done = running.wait()
    assert done.code not in (0, 75), done
    assert job.run_here("resize", "out", "3").code == 0
    done = job.run("run", "job.yaml")
    assert done.code == 0, done
    assert roles_of(job)[-1] <= {1, 2, 3}
    check_outcome(job, monkeypatch)
    shown = job.run_here("status", "out")
    assert "1 not in use" in shown.out, shown
