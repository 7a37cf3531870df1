"""Allowed differences between two starts of a run of many parameter-server jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcbal.config import JobsConfig, resolved_yaml
from hpcbal.errors import OutputError
from hpcbal.telemetry.claim.same_config import Changes, check_same

ONE = {"app": "m:App", "data": {"dataset": "m:data"}, "mini_batch": 10}


def config(*jobs: dict[str, Any], **changes: Any) -> str:
    listed = jobs or ({"name": "a"}, {"name": "b"})
    return resolved_yaml(JobsConfig.model_validate({"jobs": [{**ONE, **job} for job in listed], **changes}))


def changes(now: str) -> Changes:
    return check_same(Path("out"), config(), now, {})


@pytest.mark.parametrize(
    ("now", "keys"),
    [
        (config({"name": "b"}, {"name": "a"}), ()),
        (config(schedule={"paradigm": "isolated"}), ("schedule.paradigm",)),
        (config({"name": "a", "arrives_s": 3.0}, {"name": "b"}), ("jobs.a.arrives_s",)),
        (config({"name": "a"}, {"name": "b", "stop": {"max_epochs": 3}}), ("jobs.b.stop.max_epochs",)),
        (config({"name": "a"}, {"name": "b", "stop": {"patience": 3}}), ("jobs.b.stop.patience",)),
        (config({"name": "a"}, {"name": "b", "objective": {"every": 2}}), ("jobs.b.objective.every",)),
    ],
)
def test_where_and_how_long_jobs_train_may_change(now: str, keys: tuple[str, ...]) -> None:
    assert changes(now) == Changes(keys)


def test_jobs_come_and_go() -> None:
    found = changes(config({"name": "a"}, {"name": "c"}))
    assert (found.added, tuple(found.removed)) == (("c",), ("b",))


@pytest.mark.parametrize(
    ("now", "line"),
    [
        (config({"name": "a", "mini_batch": 20}, {"name": "b"}), "jobs.a.mini_batch: was 10, is 20"),
        (config({"name": "a", "seed": 20}, {"name": "b"}), "jobs.a.seed: was null, is 20"),
        (config({"name": "a"}, {"name": "b", "app": "m:Other"}), "jobs.b.app: was m:App, is m:Other"),
        (config(seed=1), "seed: was 0, is 1"),
    ],
)
def test_what_jobs_compute_may_not(now: str, line: str) -> None:
    with pytest.raises(OutputError) as caught:
        changes(now)
    assert line in str(caught.value)
    assert "machines; of a job arrives_s, seconds_per_sample, stop, objective. Jobs may be" in str(
        caught.value
    )
