"""The records of executors in a profiling run: jobs in one process, and their configs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import yaml
from paramserver_apps import APPS
from paramserver_job import Setup, run_job

from hpcbal.config import ParamServerConfig, load_ensemble
from hpcbal.errors import InputError
from hpcbal.forecast.engine_trace import trace_of_engine
from hpcbal.forecast.trace import Resource, Trace
from hpcbal.paramserver.worker.loading import EmulatedMachine
from hpcbal.runtime.handoff.launch_dir import RunRequest, load_requested
from hpcbal.runtime.jobs.profiling import OperationTrace, profiled, summary_of

EPOCHS = 4


def recorded(name: str, machine: EmulatedMachine | None = None) -> tuple[OperationTrace, OperationTrace, int]:
    """Of a worker and a server; and the turns that there were."""
    worker, server = OperationTrace(), OperationTrace()
    machines = {} if machine is None else {1: machine, 2: machine}
    traces = {1: worker, 2: server}
    setup = Setup(APPS[name], [1], [2], 10, EPOCHS, staleness=None, machines=machines, traces=traces)
    master, _ = run_job(setup)
    assert server.steps == []
    return worker, server, len(master.turns)


def trace_of(
    worker: OperationTrace, server: OperationTrace, bytes_per_s: float | None = None
) -> tuple[Trace, list[str]]:
    trace = trace_of_engine(worker.steps, server.services, bytes_per_s)
    return trace, [operation.name for operation in trace.operations]


def test_every_turn_but_the_first_is_a_step_with_all_its_messages() -> None:
    worker, server, num_turns = recorded("mlr")
    assert len(worker.steps) == num_turns - 1
    for step in worker.steps:
        assert step.begins_s <= step.asks_s <= step.has_s <= step.ends_s
        for messages in step.routes.values():
            assert min(messages.request_bytes, messages.answer_bytes, messages.push_bytes) > 0
    trace, names = trace_of(worker, server)
    assert trace.samples_per_step == 10
    assert names[-1] == "compute"
    table_bytes = 8 * 3 * (7 + 1)  # weights of 7 features and the bias, for 3 classes
    assert trace.num_bytes(Resource.DOWNLINK) > table_bytes
    assert trace.num_bytes(Resource.UPLINK) > table_bytes
    assert summary_of(trace).startswith(f"{trace.num_steps} steps of 10 samples, 8 operations; a step comp")


def test_a_step_with_sparse_tables_has_one_pull_and_one_push() -> None:
    trace, names = trace_of(*recorded("ratings")[:2])
    assert [name for name in names if name.endswith("parameters")] == [
        "send updates of parameters",
        "apply updates of parameters",
        "ask for parameters",
        "answer for parameters",
        "latency of parameters",
        "send parameters",
    ]
    assert trace.num_steps > EPOCHS


def test_on_emulated_links_transfers_take_what_the_links_need() -> None:
    machine = EmulatedMachine(seconds_per_sample=0.001, bytes_per_s=50_000.0)
    worker, server, _ = recorded("mlr", machine)
    trace, names = trace_of(worker, server, machine.bytes_per_s)
    links = [position for position, each in enumerate(trace.operations) if each.resource.is_link]
    moved = np.array([trace.operations[position].num_bytes for position in links])
    assert trace.durations_s[:, links].mean(axis=0) == pytest.approx(moved / 50_000.0, rel=1e-3)
    assert (trace.durations_s[:, names.index("compute")] >= 0.01).all()


# ---- the job that is profiled -------------------------------------------------------------------

JOB = {
    "kind": "paramserver",
    "app": "hpcbal.paramserver.apps:MLR",
    "data": {"dataset": "hpcbal.paramserver.apps:labelled", "args": {"dataset": "hpcbal.data:digits"}},
    "mini_batch": 100,
    "consistency": "async",
    "stop": {"max_epochs": 2},
}


def request_of(folder: Path, **changes: object) -> RunRequest:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump({**JOB, **changes}), encoding="utf-8")
    return RunRequest(path, num_operation_steps=5)


def loaded(folder: Path, **changes: object) -> ParamServerConfig:
    config = load_requested(request_of(folder, **changes), is_rank=False)
    assert isinstance(config, ParamServerConfig)
    return config


def test_the_profiled_job_has_one_worker_one_server_and_no_end(tmp_path: Path) -> None:
    machines = [{"count": 3, "bandwidth": 1e6}, {"count": 2, "bandwidth": 2e6}]
    config = profiled(loaded(tmp_path, machines=machines, workers=3, servers=2))
    assert (config.workers, config.servers, config.tune.enabled) == (1, 1, False)
    assert [machine.bandwidth for machine in config.machines] == [1e6, 2e6]
    assert [machine.count for machine in config.machines] == [1, 1]
    assert config.stop.max_epochs is not None
    assert config.stop.max_epochs > 10**9
    assert config.objective.every > 10**9
    assert profiled(loaded(tmp_path)).machines == ()


@pytest.mark.parametrize("consistency", ["sync", {"stale": 2}])
def test_jobs_whose_workers_wait_for_each_other_are_refused(tmp_path: Path, consistency: object) -> None:
    given = consistency if isinstance(consistency, str) else "stale"
    with pytest.raises(
        InputError, match=rf"consistency: got {given}, allowed with --operations: async.*--set consist"
    ):
        loaded(tmp_path, consistency=consistency)


def test_other_kinds_of_files_are_refused(tmp_path: Path) -> None:
    request = request_of(tmp_path)
    jobs = {
        "kind": "jobs",
        "jobs": [{"name": "one", **{key: JOB[key] for key in JOB if key not in ("kind", "consistency")}}],
    }
    request.config_path.write_text(yaml.safe_dump(jobs), encoding="utf-8")
    with pytest.raises(InputError, match=r"kind: got jobs, allowed with --operations: paramserver"):
        load_requested(request, is_rank=False)
    ensemble = Path(__file__).parents[4] / "configs" / "reference.yaml"
    assert load_ensemble(ensemble).kind == "ensemble"
    with pytest.raises(InputError, match=r"kind: got ensemble, .* leave it out to measure an ensemble's"):
        load_requested(dataclasses.replace(request, config_path=ensemble), is_rank=False)
