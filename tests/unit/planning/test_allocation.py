"""The walltime to request, and which allocation keeps its slots busy."""

from __future__ import annotations

import pytest

from hpcbal.cluster.walltime import WALLTIME_MARGIN_S
from hpcbal.planning.allocation import (
    ASSUMED_CHECKPOINT_S,
    MOST_NODES,
    AllocationPrediction,
    PredictedRun,
    largest_keeping,
    largest_tried,
    side_by_side,
)
from hpcbal.planning.calibration import EarlierRun


def prediction(num_nodes: int, busy: float | None = 0.5, seconds: float = 3600.0) -> AllocationPrediction:
    runs = [EarlierRun(3600.0, 0.0, 3600.0, 1.0, 1, 4, 0.9, 0.8)]  # ranks that start at once
    return AllocationPrediction.of(PredictedRun(seconds, busy), num_nodes, 4 * num_nodes, runs)


def test_the_request_covers_the_band_a_checkpoint_and_the_clean_stop_in_whole_minutes() -> None:
    runs = [EarlierRun(3600.0, 60.0, 3660.0 * (1 + n / 100), 7.0 + n, 1, 4, 0.9, 0.8) for n in range(20)]
    found = AllocationPrediction.of(PredictedRun(1800.0, 0.9), 2, 8, runs)
    least_s = found.band.high_s + 26.0 + WALLTIME_MARGIN_S
    assert found.ask_s % 60 == 0
    assert found.lead_s == 120  # a checkpoint of 26 s, and the margin
    assert least_s <= found.ask_s < found.band.high_s + found.lead_s + 60.0
    assert found.ask_text == f"0:{found.ask_s // 60:02d}:00"
    assert AllocationPrediction.of(PredictedRun(1800.0, 0.9), 2, 8, []).checkpoint_s == ASSUMED_CHECKPOINT_S


def test_a_short_run_may_write_its_checkpoint_too() -> None:
    """The script of a job ignores its signal if the job begins less than a minute before it."""
    found = AllocationPrediction.of(PredictedRun(2.0, 0.9), 1, 4, [])
    assert found.band.high_s <= 60.0 + 30.0
    assert (found.ask_s, found.lead_s) == (240, 120)


def test_use_includes_the_start_and_node_hours_the_nodes() -> None:
    runs = [EarlierRun(300.0, 100.0, 400.0, 1.0, 1, 4, 0.9, 0.8)] * 3
    found = AllocationPrediction.of(PredictedRun(300.0, 0.8), 3, 12, runs)
    assert found.busy == pytest.approx(0.6)
    assert found.node_hours(3600.0) == 3.0
    assert found.to_dict()["node_hours"]["median"] == pytest.approx(3 * 400.0 / 3600.0)


def test_the_largest_allocation_that_keeps_the_use_is_chosen() -> None:
    predictions = [prediction(1, 0.9), prediction(2, 0.8), prediction(4, 0.79), prediction(8, None)]
    assert largest_keeping(predictions, 0.8) is predictions[1]
    assert largest_keeping(predictions, 0.95) is None
    (marked,) = (line for line in side_by_side(predictions, predictions[1]) if line.startswith("*"))
    assert marked.split()[1:3] == ["8", "2"]


@pytest.mark.parametrize("most", [1, 2, 3, 5, 7, 8, 100, 255])
def test_the_search_finds_the_last_number_of_nodes_that_keeps_the_use(most: int) -> None:
    tried: list[int] = []

    def at(num_nodes: int) -> AllocationPrediction:
        tried.append(num_nodes)
        return prediction(num_nodes, 0.9 if num_nodes <= most else 0.7)

    assert largest_tried(at, 0.8).num_nodes == most
    assert len(tried) == len(set(tried)) <= 20


def test_the_search_ends_at_one_node_or_at_the_most_nodes() -> None:
    assert largest_tried(lambda count: prediction(count, 0.1), 0.8).num_nodes == 1
    assert largest_tried(lambda count: prediction(count, None), 0.8).num_nodes == 1
    assert largest_tried(lambda count: prediction(count, 1.0), 0.8).num_nodes == MOST_NODES
