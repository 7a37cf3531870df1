"""How far a parameter-server job is from its end."""

from __future__ import annotations

import pytest

from hpcbal.paramserver.master.stopping import JobStop
from hpcbal.values import EpochRecord


def history(losses: list[float], every: int = 1) -> list[EpochRecord]:
    return [
        EpochRecord(i * every, 0, {"loss": loss, "accuracy": 1 - loss}, 1.0)
        for i, loss in enumerate(losses, 1)
    ]


def epochs_left(stop: JobStop, records: list[EpochRecord], epochs: int, every: int) -> float:
    return stop.epochs_until(stop.expected_end(records, every), epochs)


FALLING = [1 / (0.2 * k + 1) for k in range(1, 11)]


def test_without_a_target_all_epochs_are_left() -> None:
    assert epochs_left(JobStop(100), history(FALLING), 10, 1) == 90
    assert epochs_left(JobStop(100, target=0.1), [], 3, 1) == 97


@pytest.mark.parametrize(
    ("monitor", "target"), [("loss", 1 / (0.2 * 25 + 1)), ("accuracy", 1 - 1 / (0.2 * 25 + 1))]
)
@pytest.mark.parametrize("every", [1, 3])
def test_the_way_to_a_target_follows_from_the_objectives_so_far(
    monitor: str, target: float, every: int
) -> None:
    stop = JobStop(1000, monitor, target=target)
    done = 10 * every
    assert epochs_left(stop, history(FALLING, every), done, every) == pytest.approx(15 * every, rel=0.1)
    assert epochs_left(stop, history(FALLING, every), done + 1, every) == pytest.approx(
        15 * every - 1, rel=0.1
    )


def test_a_metric_that_is_not_reported_reaches_no_target() -> None:
    assert epochs_left(JobStop(100, "rmse", target=0.1), history(FALLING), 10, 1) == 90


def test_no_more_epochs_are_left_than_there_are() -> None:
    stop = JobStop(12, target=1e-3)
    assert epochs_left(stop, history(FALLING), 10, 1) == 2
    assert epochs_left(stop, history(FALLING), 12, 1) == 0
