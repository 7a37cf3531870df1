"""Flotillas worked out by hand, ties, and errors."""

from __future__ import annotations

import math
import pickle

import pytest
from flotillas import create_flotilla, plan_all_flotillas

from hpcbal.errors import PolicyError
from hpcbal.policies.flotilla import Delta, FlotillaPlanner
from hpcbal.policies.rates import RateTable

WITHIN_20 = Delta(absolute=20.0)


def table_of(**rates: list[float]) -> RateTable:
    """Rates on 1, 2, ... slots by DNN."""
    measured = {name: dict(enumerate(row, start=1)) for name, row in rates.items()}
    return RateTable(measured, slots_per_node=max(len(row) for row in rates.values()))


def test_slow_dnns_get_the_slots_that_bring_them_to_the_fastest() -> None:
    table = table_of(
        fast=[100, 190, 270, 340, 400, 450],
        half=[52, 98, 140, 180, 215, 250],
        third=[35, 68, 103, 130, 155, 180],
        crawl=[10, 19, 27, 34, 40, 45],
    )
    flotilla = create_flotilla(("crawl", "third", "half", "fast"), table, 6, WITHIN_20)
    assert flotilla.dnn_ids == ("fast", "half", "third")
    assert flotilla.num_slots == (1, 2, 3)
    assert flotilla.rates == flotilla.rates_before == (100, 98, 103)
    assert flotilla.reference_rate == 100


def test_a_dnn_takes_second_best_when_slots_run_short() -> None:
    table = table_of(fast=[100, 110, 120, 130], slow=[60, 85, 99, 130])
    assert create_flotilla(("fast", "slow"), table, 3, WITHIN_20).num_slots == (1, 2)


def test_extra_slots_go_to_the_slowest_one_by_one() -> None:
    table = table_of(a=[100, 150, 180, 200, 210, 215, 218], b=[95, 140, 170, 190, 205, 212, 216])
    flotilla = create_flotilla(("a", "b"), table, 7, WITHIN_20)
    # b 140, a 150, b 170, a 180, b 190
    assert flotilla.num_slots == (3, 4)
    assert flotilla.rates_before == (100, 95)
    assert flotilla.rates == (180, 190)


def test_a_slowest_dnn_that_gains_nothing_is_skipped() -> None:
    table = table_of(a=[100, 150, 180, 200], b=[95, 90, 80, 70])
    assert create_flotilla(("a", "b"), table, 4, WITHIN_20).num_slots == (3, 1)


def test_extra_slots_step_over_a_dip_if_enough_are_left() -> None:
    table = table_of(a=[100, 60, 130, 140])
    assert create_flotilla(("a",), table, 2, WITHIN_20).num_slots == (1,)
    assert create_flotilla(("a",), table, 3, WITHIN_20).num_slots == (3,)


def test_slots_that_only_slow_dnns_down_stay_free() -> None:
    table = table_of(a=[100, 90, 80, 70], b=[95, 85, 75, 65])
    flotilla = create_flotilla(("a", "b"), table, 4, WITHIN_20)
    assert flotilla.num_slots == (1, 1)
    assert sum(flotilla.num_slots) == 2


def test_no_dnn_gets_slots_that_make_it_slower_to_come_nearer_to_the_reference() -> None:
    table = table_of(a=[100, 150, 180, 200, 210, 220], b=[60, 110, 130, 120, 101, 100])
    flotilla = create_flotilla(("a", "b"), table, 6, WITHIN_20, max_slots_per_dnn=5)
    assert flotilla.rates_before == (100, 110)


def test_ties_go_to_fewer_slots_and_then_to_the_earlier_candidate() -> None:
    table = table_of(a=[100, 120, 140], b=[90, 110, 130], c=[90, 110, 130])
    flotilla = create_flotilla(("c", "a", "b"), table, 3, WITHIN_20)
    assert flotilla.dnn_ids == ("a", "c", "b")
    assert flotilla.num_slots == (1, 1, 1)
    same = table_of(a=[100, 120], b=[100, 120])
    assert create_flotilla(("b", "a"), same, 1, WITHIN_20).dnn_ids == ("b",)
    assert create_flotilla(("b", "a"), same, 3, WITHIN_20).num_slots == (2, 1)


def test_delta_includes_its_bound_and_may_be_relative() -> None:
    table = table_of(a=[100, 120], b=[80, 82])
    sizes = [
        len(create_flotilla(("a", "b"), table, 2, delta).dnn_ids)
        for delta in (Delta(absolute=20.0), Delta(absolute=19.9), Delta(relative=0.2), Delta(relative=0.19))
    ]
    assert sizes == [2, 1, 2, 1]


def test_max_slots_per_dnn_bounds_choice_and_extras() -> None:
    table = table_of(fast=[100, 190, 270, 340], slow=[35, 68, 103, 130])
    flotilla = create_flotilla(("fast", "slow"), table, 4, WITHIN_20, max_slots_per_dnn=2)
    assert flotilla.dnn_ids == ("fast",)
    assert flotilla.num_slots == (2,)


def test_one_slot_trains_one_dnn_after_another_the_fastest_first() -> None:
    table = table_of(a=[10], b=[30], c=[20])
    flotillas = plan_all_flotillas(("a", "b", "c"), table, 1, WITHIN_20)
    assert [f.dnn_ids for f in flotillas] == [("b",), ("c",), ("a",)]


def test_without_candidates_there_are_no_flotillas() -> None:
    planner = FlotillaPlanner(("a",), table_of(a=[1.0]), 4, WITHIN_20)
    assert planner.all_flotillas((), 4) == []


def test_a_flotilla_survives_pickling() -> None:
    flotilla = create_flotilla(("a",), table_of(a=[10.0, 19.0]), 2, WITHIN_20)
    assert pickle.loads(pickle.dumps(flotilla)) == flotilla


def test_errors_say_what_is_wrong() -> None:
    table = table_of(a=[10.0, 19.0], b=[5.0])
    with pytest.raises(PolicyError, match="without candidates"):
        create_flotilla((), table, 2, WITHIN_20)
    with pytest.raises(PolicyError, match="more than once: a"):
        create_flotilla(("a", "b", "a"), table, 2, WITHIN_20)
    with pytest.raises(PolicyError, match="num_slots: got 0"):
        create_flotilla(("a",), table, 0, WITHIN_20)
    with pytest.raises(PolicyError, match="max_slots_per_dnn: got 0"):
        create_flotilla(("a",), table, 2, WITHIN_20, 0)
    with pytest.raises(PolicyError, match="'nobody'"):
        create_flotilla(("a", "nobody"), table, 2, WITHIN_20)


@pytest.mark.parametrize(
    ("absolute", "relative"), [(None, None), (1.0, 1.0), (-1.0, None), (None, math.nan), (math.inf, None)]
)
def test_delta_needs_exactly_one_sound_number(absolute: float | None, relative: float | None) -> None:
    with pytest.raises(PolicyError, match="delta"):
        Delta(absolute, relative)
