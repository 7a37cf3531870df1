"""Settings know the cost of even shares; step times come from the timeline and are compared within turns."""

from __future__ import annotations

from typing import Any

import pytest
from contention.shares import (
    PASSES,
    SETTLING_PASSES,
    STEPS,
    Setting,
    best_fixed,
    config_of,
    is_bracketed,
    order_of,
    over,
    range_over,
    rates_of,
    steps_by_dnn,
    ways,
)

from hpcbal.config import EnsembleConfig
from hpcbal.policies import Delta, create_flotilla, profile_by_name

TWO, FOUR = Setting("1_2", (0, 1, 1), 480), Setting("1_4", (0, 1, 1, 1, 1), 480)


def test_the_paper_s_settings_cost_what_the_paper_says() -> None:
    assert TWO.speeds == (1.0, 0.5, 0.5)
    assert TWO.even_over_best == pytest.approx(4 / 3)
    assert FOUR.even_over_best == pytest.approx(1.6)


@pytest.mark.parametrize("setting", [TWO, FOUR])
def test_the_configuration_is_valid_and_its_networks_train_alone(setting: Setting, tmp_path: Any) -> None:
    values = config_of(setting, num_turns=2, channels=8, folder=tmp_path)
    config = EnsembleConfig.model_validate(values)
    names = [dnn.name for dnn in config.dnns]
    assert len(names) == len(set(names)) == 15
    without_turn = [name[2:] for name in names[1:]]  # the first has even shares and trains once
    assert without_turn[:7] == without_turn[:6:-1]  # every second turn goes backwards
    workers = len(setting.cores)
    rates = profile_by_name(rates_of(names, workers), names, workers)
    waiting = list(names)
    for name in names:  # in turns, each on all workers
        flotilla = create_flotilla(waiting, rates, workers, Delta(absolute=0.0))
        assert (flotilla.dnn_ids, flotilla.num_gpus) == ((name,), (workers,))
        waiting.remove(name)


def slices(tid: int, step_us: int) -> list[dict[str, Any]]:
    """A rank's track: passes of STEPS training steps and one step of validation."""
    found: list[dict[str, Any]] = [{"ph": "M", "name": "thread_name", "tid": tid}]
    now = 0
    for index in range(PASSES):
        began = now
        for _ in range(STEPS + 1):
            now += step_us
            found.append({"ph": "X", "cat": "compute", "name": "update", "tid": tid, "ts": now - 5, "dur": 5})
        found.append(
            {"ph": "X", "cat": "pass", "name": f"a pass {index}", "tid": tid, "ts": began, "dur": now - began}
        )
        now += 1000
    return found


def test_steps_are_counted_once_they_have_settled() -> None:
    found = steps_by_dnn([*slices(4, 300), *slices(3, 200)])
    assert list(found) == ["a"]
    assert found["a"] == [pytest.approx(200e-6)] * (PASSES - SETTLING_PASSES) * (STEPS - 1)


def test_a_turn_on_a_slower_machine_favours_no_way() -> None:
    slow = [1.0, 1.0, 3.0, 1.0]  # seconds that the machine adds, by turn
    turns = {
        "even": [1.5],
        "fixed x1": [1.0 * s for s in slow],
        "fixed x1.05": [0.9 * s for s in slow],
        "fitted": [0.99 * s for s in slow],
    }
    assert best_fixed(turns) == "fixed x1.05"
    assert over(turns["fitted"], turns["fixed x1.05"]) == pytest.approx(1.1)
    assert range_over(turns["fitted"], turns["fixed x1.05"]) == pytest.approx((1.1, 1.1))
    assert over(turns["even"], turns["fixed x1.05"]) == pytest.approx(1.5 / 0.9)


@pytest.mark.parametrize("num_turns", [2, 4, 6])
def test_a_machine_that_slows_down_within_turns_favours_no_way(num_turns: int) -> None:
    turns: dict[str, list[float]] = {}
    for place, (_, way) in enumerate(order_of(TWO, num_turns)):
        turns.setdefault(way, []).append(1.0 + 0.01 * place)
    del turns["even"]
    best = turns[best_fixed(turns)]
    assert [over(seconds, best) for seconds in turns.values()] == pytest.approx([1.0] * 7, abs=5e-3)


def test_no_single_way_decides_which_split_is_best() -> None:
    """Two turns of the first way were disturbed: compared with that way alone, the last one would win."""
    turns = {
        "fixed x0.9": [2.0, 2.0, 1.0, 1.0],
        "fixed x1": [1.0, 1.0, 1.0, 1.0],
        "fixed x1.1": [1.3, 1.3, 0.84, 0.84],
    }
    assert over(turns["fixed x1.1"], turns["fixed x0.9"]) < over(turns["fixed x1"], turns["fixed x0.9"])
    assert best_fixed(turns) == "fixed x1"


def test_the_range_shows_how_much_the_turns_differ() -> None:
    assert range_over([1.0, 1.1, 1.02, 0.98], [1.0, 1.0, 2.0, 1.0]) == pytest.approx((0.51, 1.1))
    assert range_over([1.4], [1.0, 1.0]) == (1.4, 1.4)


def test_the_best_split_lies_between_others() -> None:
    assert [is_bracketed(way) for way in ways(TWO) if way.startswith("fixed")] == [
        False,
        True,
        True,
        True,
        False,
    ]
