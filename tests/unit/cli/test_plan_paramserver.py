"""`hpcbal plan` for a job on parameter servers: its ranks, and what an earlier run lets one predict."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from ledger_lines import entry
from traces import trace_of_steps, write_trace

from hpcbal.cli import main
from hpcbal.config import ParamServerConfig
from hpcbal.events.line import Line
from hpcbal.forecast.trace import Resource, Trace, TracedOperation
from hpcbal.planning.paramserver import MeasuredEpoch, last_measured, predicted
from hpcbal.telemetry.ledger.codec import Entry
from hpcbal.telemetry.ledger.file import Ledger, scan_ledger
from hpcbal.telemetry.ledger.job_lines import JobEpochLine, ReconfiguredLine, RolesAssignedLine, WorkerFacts

BANDWIDTH, SECONDS, MODEL, BATCH = 1e7, 1e-3, 400_000, 100
"""Of equal executors; bytes of the model; samples of a turn."""


def config_of(**changes: object) -> ParamServerConfig:
    base = {"app": "m:f", "data": {"dataset": "m:d"}, "mini_batch": BATCH, "consistency": "async"}
    return ParamServerConfig.model_validate(base | changes)


def worker(executor: int, turns: int = 5) -> WorkerFacts:
    """As one whose own link is the bottleneck."""
    pull_s = turns * 2 * MODEL / BANDWIDTH
    return WorkerFacts(
        executor, turns, turns * BATCH, turns * BATCH * SECONDS, pull_s, 0.1, turns * 2 * MODEL
    )


def epoch(number: int, *workers: WorkerFacts) -> JobEpochLine:
    return JobEpochLine("job", number, 1.5, {}, workers)


START = RolesAssignedLine(
    ("worker", "worker", "server", "server"), (16, 16, 0, 0), (0, 0, 16, 16), 1000, MODEL, None
)
CHANGE = ReconfiguredLine("job", "why", ("worker", "worker", "worker", "server"), 8, 8, 0.1, 0.2)


def ledger(*lines: Line) -> list[Entry]:
    return [entry(line, number, float(number)) for number, line in enumerate(lines)]


def test_the_last_epoch_with_one_configuration_counts() -> None:
    first, second = epoch(1, worker(1), worker(2)), epoch(2, worker(1), worker(2))
    assert last_measured(ledger(START, first), has_barrier=False) is None
    found = last_measured(ledger(START, first, second), has_barrier=False)
    assert found is not None
    assert (found.num_workers, found.num_servers, found.num_samples) == (2, 2, 1000)
    assert found.seconds_per_sample == pytest.approx(SECONDS)
    assert found.turn_bytes == 2 * MODEL
    changed = [START, first, second, CHANGE, epoch(3, worker(1), worker(2), worker(3))]
    again = last_measured(ledger(*changed), has_barrier=False)
    assert again == found
    later = last_measured(ledger(*changed, epoch(4, worker(1), worker(2), worker(3))), has_barrier=False)
    assert later is not None
    assert (later.num_workers, later.num_servers) == (3, 1)


def test_turns_that_move_no_bytes_measure_nothing() -> None:
    old = WorkerFacts(1, 5, 500, 0.5, 0.4, 0.1, 0)
    assert last_measured(ledger(START, epoch(1, old), epoch(2, old)), has_barrier=False) is None


def measured() -> MeasuredEpoch:
    found = last_measured(
        ledger(START, epoch(1, worker(1), worker(2)), epoch(2, worker(1), worker(2))), has_barrier=False
    )
    assert found is not None
    return found


def test_the_links_are_measured_and_the_best_configuration_is_predicted() -> None:
    found = predicted(config_of(links="in_turn"), measured(), 4)
    assert found is not None
    assert found.bandwidth == pytest.approx(BANDWIDTH)
    # Three workers of 334 samples: four turns each; the server needs less than they do.
    assert (found.num_workers, found.num_servers) == (3, 1)
    alone_s = 11 / 32 * 1000 * SECONDS + 4 * 2 * MODEL / BANDWIDTH
    assert found.epoch_s == pytest.approx(alone_s)
    shared = predicted(config_of(), measured(), 4)  # real links: the three share that of the server at times
    assert shared is not None
    assert 1.2 * alone_s < shared.epoch_s < 1.4 * alone_s


def test_machines_of_the_file_take_precedence() -> None:
    machines = [{"count": 4, "seconds_per_sample": 0.01, "bandwidth": "1MB/s", "speed": 2}]
    found = predicted(config_of(machines=machines), measured(), 4)
    assert found is not None
    assert (found.seconds_per_sample, found.bandwidth) == (0.005, 1e6)


def test_one_executor_can_do_nothing() -> None:
    assert predicted(config_of(), measured(), 1) is None


def test_plan_shows_what_was_measured_and_predicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {
        "kind": "paramserver",
        "app": "hpcbal.paramserver.apps:MLR",
        "data": {"dataset": "hpcbal.paramserver.apps:labelled"},
        "mini_batch": BATCH,
        "consistency": "async",
        "output": {"dir": str(tmp_path / "run")},
    }
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(config))
    command = ["plan", str(path), "--slots", "4"]
    assert main([*command, "--json"]) == 0
    assert "predicted" not in json.loads(capsys.readouterr().out)
    (tmp_path / "run").mkdir()
    file = tmp_path / "run" / "ledger.jsonl"
    written = Ledger(file, scan_ledger(file))
    for line in (START, epoch(1, worker(1), worker(2)), epoch(2, worker(1), worker(2))):
        written.append(line)
    written.close()
    assert main([*command, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["measured"]["epoch_s"] == 1.5
    assert facts["predicted"]["num_workers"] == 3
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "measured: 2 workers, 2 servers: 1.5 s an epoch; 1 ms a sample, 0.8 MB a turn" in text
    assert "predicted: 3 workers, 1 server: 0.855 s an epoch" in text
    assert "trust hpcbal simulate more than hpcbal plan: it plays each message" in text


def trace_of_one_worker() -> Trace:
    """A turn pulls for 0.1 s at 10 MB/s, computes for 0.2 s, and pushes for 0.1 s."""
    operations = [
        TracedOperation("pull", Resource.DOWNLINK, (), 1_000_000),
        TracedOperation("compute", Resource.WORKER, (0,)),
        TracedOperation("push", Resource.UPLINK, (1,), 1_000_000),
    ]
    trace = trace_of_steps(operations, [[0.0, 0.2, 0.0]] * 3)
    return replace(trace, samples_per_step=BATCH, splits=True)


def job_with_trace(folder: Path, **changes: object) -> Path:
    config = {
        "kind": "paramserver",
        "app": "hpcbal.paramserver.apps:MLR",
        "data": {"dataset": "hpcbal.paramserver.apps:labelled"},
        "mini_batch": BATCH,
        "consistency": "async",
        "machines": [{"count": 7, "seconds_per_sample": 0.002, "bandwidth": 1e7}],
        "output": {"dir": str(folder / "run")},
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(config | changes))
    (folder / "run").mkdir()
    write_trace(folder / "run" / "operations.jsonl", trace_of_one_worker())
    return path


@pytest.mark.parametrize(
    ("changes", "workers", "servers", "rate"),
    [
        ({"workers": 1, "servers": 1}, 1, 1, 250.0),  # 100 samples in 0.4 s
        ({"servers": 2}, 5, 2, 1250.0),
        ({}, 5, 2, 1250.0),  # the best split: the link of one server carries 1000, and 4 workers do 1000
    ],
)
def test_plan_forecasts_from_the_trace_of_a_profile(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, object],
    workers: int,
    servers: int,
    rate: float,
) -> None:
    path = job_with_trace(tmp_path, **changes)
    assert main(["plan", str(path), "--slots", "7", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["forecast"]
    assert (found["num_workers"], found["num_servers"]) == (workers, servers)
    assert found["samples_per_s"]["value"] == pytest.approx(rate, rel=0.1)
    assert main(["plan", str(path), "--slots", "7"]) == 0
    text = capsys.readouterr().out
    assert f"forecast: {workers} worker" in text
    assert "samples/s (" in text
    assert "trust the forecast: it replays recorded steps" in text


def test_plan_and_simulate_predict_the_same_with_the_same_band(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = job_with_trace(tmp_path, workers=5, servers=2, tune={"enabled": False}, stop={"max_epochs": 2})
    assert main(["plan", str(path), "--slots", "7", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)["forecast"]["samples_per_s"]
    assert main(["simulate", str(path), "--slots", "7", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["samples_per_s"] == planned
    assert main(["simulate", str(path), "--slots", "7"]) == 0
    text = capsys.readouterr().out
    assert f"forecast: 5 workers, 2 servers: {planned['value']:.4g} samples/s (" in text
    assert "trust the forecast: it replays recorded steps" in text


@pytest.mark.parametrize(
    "changes",
    [
        {"consistency": "sync"},
        {"machines": []},  # the bandwidth is not known
        {"workers": 5, "servers": 5},  # of 7 executors
    ],
)
def test_plan_forecasts_nothing_that_it_cannot_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, object]
) -> None:
    path = job_with_trace(tmp_path, **changes)
    assert main(["plan", str(path), "--slots", "7", "--json"]) == 0
    assert "forecast" not in json.loads(capsys.readouterr().out)


def test_plan_warns_of_a_trace_that_is_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = job_with_trace(tmp_path)
    (tmp_path / "run" / "operations.jsonl").write_text("{")
    assert main(["plan", str(path), "--slots", "7"]) == 0
    shown = capsys.readouterr()
    assert "the throughput cannot be forecast" in shown.err
    assert "forecast:" not in shown.out


@pytest.mark.parametrize(
    ("options", "executors", "srun"),
    [
        (["--nodes", "4"], 3, "--nodes=4 --ntasks-per-node=1"),
        (["--nodes", "2", "--slots-per-node", "5"], 11, "--nodes=2 --ntasks-per-node=6"),
        (["--nodes", "2", "--set", "slots.per_node=3"], 7, "--nodes=2 --ntasks-per-node=4"),
        (["--slots", "5"], 5, "--nodes=1 --ntasks-per-node=6"),
        (["--slots", "16", "--slots-per-node", "4"], 19, "--nodes=4 --ntasks-per-node=5"),
        (["--slots", "3", "--slots-per-node", "4"], 3, "--nodes=1 --ntasks-per-node=4"),
    ],
)
def test_plan_fills_the_nodes_and_shows_how_to_start_on_them(
    options: list[str], executors: int, srun: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.yaml"
    config = config_of(kind="paramserver").model_dump(mode="json", exclude_unset=True)
    path.write_text(yaml.safe_dump(config))
    assert main(["plan", str(path), *options]) == 0
    text = capsys.readouterr().out
    assert f"ranks: {executors + 1} = 1 master + {executors} executors" in text
    assert f"start: mpirun -n {executors + 1} " in text
    assert f"or: srun {srun} --mpi=pmix" in text
