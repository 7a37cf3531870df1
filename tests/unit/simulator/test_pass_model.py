"""When the readers of one stream finish a pass."""

from __future__ import annotations

import math

import pytest

from hpcbal.errors import InputError
from hpcbal.simulator.costs import Costs
from hpcbal.simulator.pass_model import PassModel, ReadingGroup


def test_validation_is_faster_than_training() -> None:
    passes = PassModel(900, 300, validation_speedup=3.0)
    assert passes.num_positions == 1200
    assert passes.seconds(10.0) == pytest.approx(90.0 + 10.0)
    assert passes.seconds(10.0, start=600) == pytest.approx(30.0 + 10.0)
    assert passes.seconds(10.0, start=1050) == pytest.approx(5.0)
    assert passes.seconds(10.0, 600, 1050) == pytest.approx(30.0 + 5.0)


def test_without_slack_all_finish_with_the_slowest() -> None:
    readers = [ReadingGroup(0.0, 0, 100.0), ReadingGroup(0.0, 0, 50.0)]
    assert PassModel(1000).finish_times(readers, 1) == pytest.approx([20.0, 20.0])


def test_the_ring_lets_a_fast_reader_be_ahead() -> None:
    passes = PassModel(1000, ring_samples=400)
    fast, slow = passes.finish_times([ReadingGroup(0.0, 0, 100.0), ReadingGroup(0.0, 0, 50.0)], 1)
    assert slow == pytest.approx(20.0)
    assert fast == pytest.approx(12.0)  # when the slow one has read 600 of 1,000


def test_with_room_for_a_pass_readers_do_not_wait() -> None:
    passes = PassModel(1000, ring_samples=1000)
    assert passes.finish_times([ReadingGroup(0.0, 0, 100.0), ReadingGroup(5.0, 0, 50.0)], 1) == pytest.approx(
        [10.0, 25.0]
    )


def test_a_late_reader_delays_the_others() -> None:
    assert PassModel(1000).finish_times(
        [ReadingGroup(0.0, 0, 100.0), ReadingGroup(7.0, 0, 100.0)], 1
    ) == pytest.approx([17.0, 17.0])


def test_a_reader_that_begins_inside_the_pass_does_only_the_rest() -> None:
    fast, slow = PassModel(1000).finish_times([ReadingGroup(0.0, 0, 100.0), ReadingGroup(0.0, 900, 50.0)], 1)
    assert (fast, slow) == (pytest.approx(10.0), pytest.approx(10.0))


def test_preprocessing_limits_the_pace() -> None:
    passes = PassModel(1000, preprocessing_samples_per_s=20.0)
    readers = [ReadingGroup(3.0, 0, 100.0)]
    assert passes.finish_times(readers, 1) == pytest.approx([53.0])
    assert passes.finish_times(readers, 2) == pytest.approx([28.0])
    assert passes.finish_times(readers, 9) == pytest.approx([13.0])


def made_s(passes: PassModel, *makers: int) -> float:
    """Seconds of a pass that a reader takes as fast as its samples are made."""
    return passes.finish_times([ReadingGroup(0.0, 0, 1e9)], *makers)[0]


def test_the_first_pass_is_made_whole_and_later_ones_without_what_the_cache_holds() -> None:
    passes = PassModel(1000, preprocessing_samples_per_s=20.0, hit_rate=0.8)
    assert made_s(passes, 2, 1) == pytest.approx(25.0)
    assert made_s(passes, 2, 0) == pytest.approx(5.0)


def test_all_that_fill_a_cache_share_only_what_it_has_room_for() -> None:
    passes = PassModel(1000, preprocessing_samples_per_s=20.0, hit_rate=0.8)
    assert made_s(passes, 1, 1, 4) == pytest.approx(200 / 20.0 + 800 / 80.0)
    assert made_s(passes, 1, 0, 4) == pytest.approx(10.0)


def test_of_merged_epochs_only_the_first_ones_fill_the_cache() -> None:
    merged = PassModel(4000, preprocessing_samples_per_s=20.0, hit_rate=0.8, num_merged=4)
    single = PassModel(1000, preprocessing_samples_per_s=20.0, hit_rate=0.8)
    for num_cold in (0, 1, 3, 4):
        each = [made_s(single, 1, max(0, num_cold - i)) for i in range(4)]
        assert made_s(merged, 1, num_cold) == pytest.approx(sum(each))
    assert made_s(merged, 1, 9) == pytest.approx(200.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_train": 0}, "num_train: got 0"),
        ({"num_validation": -1}, "num_validation: got -1"),
        ({"ring_samples": -1}, "ring_samples: got -1"),
        ({"profile_batches": 0}, "profile_batches: got 0"),
        ({"validation_speedup": 0.0}, "validation_speedup: got 0.0"),
        ({"preprocessing_samples_per_s": math.inf}, "preprocessing_samples_per_s: got inf"),
        ({"num_merged": 0}, "num_merged: got 0"),
        ({"hit_rate": 1.5}, "hit_rate: got 1.5"),
        ({"hit_rate": math.nan}, "hit_rate: got nan"),
    ],
)
def test_values_out_of_range_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        PassModel(**({"num_train": 10} | values))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_costs_are_not_negative(value: float) -> None:
    with pytest.raises(InputError, match=r"costs.load_s: got .*, allowed: seconds, 0 or more"):
        Costs(load_s=value)
