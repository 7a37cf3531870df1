"""The bench of Cruise: its files emulate what is simulated."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_cruise import CASES, Case

from hpcbal.config import ParamServerConfig


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
