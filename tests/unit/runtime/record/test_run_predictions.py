"""The newest prediction of a start is reported while it runs; the first is compared with its end."""

from __future__ import annotations

import pytest

from hpcbal.runtime.record.forecast import Compared, RunPrediction, RunPredictions
from hpcbal.simulator.run import RemainingRun


def prediction_of(asked_s: float, remaining_s: float, num_rounds: int = 2) -> RunPrediction:
    return RunPrediction(asked_s, RemainingRun(remaining_s, num_rounds, {}))


@pytest.mark.parametrize(("now_s", "left_s"), [(110.0, 40.0), (111.5, 38.5), (150.0, 0.0), (1000.0, 0.0)])
def test_time_that_goes_by_is_taken_off(now_s: float, left_s: float) -> None:
    assert prediction_of(110.0, 40.0).remaining_s(now_s) == left_s


@pytest.mark.parametrize(("num_rounds", "rounds"), [(0, ""), (1, " in 1 round"), (3, " in 3 rounds")])
def test_a_prediction_reads_well(num_rounds: int, rounds: str) -> None:
    line = prediction_of(110.0, 3725.0, num_rounds).line()
    assert line == f"predicted: 1:02:05 left{rounds}, if every DNN trains to its max_epochs"


def test_a_comparison_reads_well() -> None:
    line = Compared(predicted_s=60.0, actual_s=80.0).line()
    assert line == "predicted 0:01:00 for max_epochs, took 0:01:20 (predicted / actual 0.75)"


def test_the_first_dnns_that_begin_are_told_in_their_order() -> None:
    prediction = RunPrediction(
        100.0, RemainingRun(60.0, 2, {}, start_s={"a": 0.2, "b": 30.0, "c": 20.0, "d": 5.0})
    )
    assert prediction.next_s(110.0, ["b", "c", "d", "new"]) == {"d": 0.0, "c": 10.0, "b": 20.0}
    predictions = RunPredictions(started_s=90.0)
    predictions.add(prediction)
    status = predictions.status(110.0, ["c"], finished=False)
    assert status == {"wall_time_s": 70.0, "remaining_s": 50.0, "next_s": {"c": 10.0}}


def test_without_a_prediction_nothing_is_reported() -> None:
    predictions = RunPredictions(started_s=100.0)
    assert predictions.status(120.0, finished=False) is None
    assert predictions.compare(120.0) is None


def test_the_newest_is_the_status_and_the_first_is_compared() -> None:
    predictions, first, later = (
        RunPredictions(started_s=100.0),
        prediction_of(110.0, 40.0),
        prediction_of(130.0, 45.0),
    )
    assert predictions.add(first)
    assert predictions.wall_time_s(first) == 50.0
    assert predictions.status(120.0, finished=False) == {"wall_time_s": 50.0, "remaining_s": 30.0}
    assert not predictions.add(later)
    assert predictions.status(140.0, finished=False) == {"wall_time_s": 75.0, "remaining_s": 35.0}
    assert predictions.compare(180.0) == Compared(predicted_s=50.0, actual_s=80.0)


def test_of_a_run_that_has_finished_nothing_is_left() -> None:
    predictions = RunPredictions(started_s=100.0)
    predictions.add(prediction_of(110.0, 40.0))
    assert predictions.status(120.0, finished=True) == {"wall_time_s": 50.0, "remaining_s": 0.0}
