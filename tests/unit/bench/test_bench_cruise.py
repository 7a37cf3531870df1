"""The bench of Cruise on few machines: where the tuner ends, and files that emulate what is simulated."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cruise_search import epoch_of_roles, tuned_from
from support.emulated_serving import CASES, Case
from workloads.cruise_jobs import APPS, simulated

from hpcbal.config import ParamServerConfig


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_from_a_bad_start_the_tuner_ends_near_the_best(mode: str) -> None:
    epoch_s = {roles: epoch_of_roles("mlr", mode, 6, roles) for roles in ((w, 6 - w) for w in range(1, 6))}
    roles, end_s = tuned_from("mlr", mode, 6, (2, 4))
    assert roles[0] > 2, "computing takes most of the time"
    assert end_s < 0.9 * epoch_s[2, 4]
    assert min(epoch_s.values()) / end_s > 0.95  # it changes nothing for a gain below 5 %


@pytest.mark.parametrize("name", APPS)
def test_the_model_moves_in_the_time_that_the_ratio_says(name: str) -> None:
    app = APPS[name]
    job, machine = simulated(app, "async", 8)
    assert sum(table.num_bytes for table in job.tables) == app.model_bytes
    compute_s, transfer_s = machine.seconds_per_sample * app.mini_batch, app.model_bytes / machine.bandwidth
    assert compute_s / transfer_s == pytest.approx(app.ratio)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_emulated_job_is_the_one_that_is_simulated(case: Case, tmp_path: Path) -> None:
    config = case.config(tmp_path)
    job = ParamServerConfig.model_validate(config)
    assert job.staleness == case.staleness
    executors = case.workers + case.servers
    assert config["slots"]["per_node"] == executors == sum(kind.count for kind in case.kinds)
    emulated = [job.machine_of(i) for i in range(executors)]
    wanted = [(k.seconds_per_sample, k.bandwidth) for k in case.kinds for _ in range(k.count)]
    assert [(m.seconds_per_sample, m.bandwidth) for m in emulated if m is not None] == wanted
