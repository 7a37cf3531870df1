"""Which executors a job has: the schedule, and a file that wins over it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcbal.config import ParamServerConfig
from hpcbal.errors import InputError
from hpcbal.runtime.jobs import executors as supply
from hpcbal.runtime.jobs.executors import ExecutorSupply

RANKS = (1, 2, 3, 4, 5)


@pytest.fixture(autouse=True)
def _look_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supply, "LOOK_INTERVAL_S", 0.0)


def supply_of(path: Path, **executors: Any) -> ExecutorSupply:
    base = {"app": "m:f", "data": {"dataset": "m:d"}, "mini_batch": 10, "executors": executors}
    return ExecutorSupply(ParamServerConfig.model_validate(base), RANKS, path / "executors")


def test_the_schedule_applies_after_epochs(tmp_path: Path) -> None:
    schedule = [{"after_epoch": 2, "use": 2}, {"after_epoch": 5, "use": "all"}]
    found = supply_of(tmp_path, start=3, schedule=schedule)
    assert [len(found.in_use(epochs)) for epochs in range(7)] == [3, 3, 2, 2, 2, 5, 5]
    assert found.in_use(2) == (1, 2)
    assert found.source == "executors.schedule"
    assert supply_of(tmp_path).in_use(0) == RANKS


def test_without_a_file_only_the_schedule_counts() -> None:
    base = {"app": "m:f", "data": {"dataset": "m:d"}, "mini_batch": 10}
    executors = {"start": 3, "schedule": [{"after_epoch": 2, "use": 2}]}
    found = ExecutorSupply(ParamServerConfig.model_validate(base | {"executors": executors}), RANKS, None)
    assert [len(found.in_use(epochs)) for epochs in range(4)] == [3, 3, 2, 2]
    assert (found.source, found.take_problem()) == ("executors.schedule", "")


def test_the_file_wins_as_long_as_it_is_there(tmp_path: Path) -> None:
    found = supply_of(tmp_path, schedule=[{"after_epoch": 2, "use": 2}])
    file = tmp_path / "executors"
    file.write_text("3-5\n")
    assert found.in_use(0) == found.in_use(9) == (3, 4, 5)
    assert found.source == "executors"
    file.write_text("4")
    assert found.in_use(0) == (1, 2, 3, 4)
    file.unlink()
    assert found.in_use(0) == RANKS
    assert found.in_use(2) == (1, 2)


@pytest.mark.parametrize("content", [b"", b"1", b"six", b"\xff\xfe", b"0\n", b"9" * 100_000])
def test_a_wrong_file_changes_nothing_and_is_reported_once(tmp_path: Path, content: bytes) -> None:
    found = supply_of(tmp_path)
    file = tmp_path / "executors"
    file.write_text("2")
    assert found.in_use(0) == (1, 2)
    file.write_bytes(content)
    assert found.in_use(0) == (1, 2)
    problem = found.take_problem()
    assert str(file) in problem
    assert "allowed: all, a number of executors from 2 to 5" in problem
    assert len(problem) < 400
    found.in_use(0)
    assert found.take_problem() == ""
    file.write_text("3")
    assert found.in_use(0) == (1, 2, 3)


def test_a_file_that_cannot_be_read_changes_nothing(tmp_path: Path) -> None:
    found = supply_of(tmp_path, start=3)
    (tmp_path / "executors").mkdir()
    assert found.in_use(0) == (1, 2, 3)
    assert "cannot read" in found.take_problem()
    assert found.in_use(0) == (1, 2, 3)
    assert found.take_problem() == "", "it is reported once"


@pytest.mark.parametrize(
    ("executors", "key"),
    [({"start": 6}, "executors.start"), ({"schedule": [{"after_epoch": 1, "use": 7}]}, "schedule.0.use")],
)
def test_more_than_there_are_is_refused(tmp_path: Path, executors: Any, key: str) -> None:
    with pytest.raises(InputError, match=rf"{key}: got [67], but the job has 5 executors; start more ranks"):
        supply_of(tmp_path, **executors)


def test_epochs_of_a_schedule_ascend() -> None:
    schedule = [{"after_epoch": 3, "use": 2}, {"after_epoch": 3, "use": 4}]
    with pytest.raises(ValueError, match="got 3 after 3, allowed: ascending epochs"):
        supply_of(Path(), schedule=schedule)
