"""Flotillas equal those of the plain triple loop, and meet FLEET's requirements."""

from __future__ import annotations

import fleet_peers
import numpy as np
from flotillas import create_flotilla, plan_all_flotillas
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbal.policies.flotilla import (
    Delta,
    Flotilla,
    FlotillaPlanner,
    Ladders,
)
from hpcbal.policies.rates import RateTable


def rate_tables(*, growing: bool = False, whole: bool = True) -> st.SearchStrategy[tuple[RateTable, int]]:
    """Tables of 1 to 7 DNNs measured on all of 1..M slots, and M; few different values, so many ties."""
    value = st.integers(1, 12).map(float) if whole else st.floats(0.5, 200.0)

    def table(num_slots: int) -> st.SearchStrategy[tuple[RateTable, int]]:
        row = st.lists(value, min_size=num_slots, max_size=num_slots)
        if growing:
            row = row.map(lambda steps: np.cumsum(steps).tolist())
        rows = st.lists(row, min_size=1, max_size=7)
        return rows.map(
            lambda lists: (
                RateTable(
                    {f"dnn{i}": dict(enumerate(rates, start=1)) for i, rates in enumerate(lists)}, num_slots
                ),
                num_slots,
            )
        )

    return st.integers(1, 10).flatmap(table)


deltas = st.one_of(
    st.sampled_from([0.0, 1.0, 3.0, 20.0]).map(lambda v: Delta(absolute=v)),
    st.sampled_from([0.0, 0.15, 1.0]).map(lambda v: Delta(relative=v)),
)


def literal(
    table: RateTable, num_slots: int, delta: Delta, skip_slower_counts: bool
) -> tuple[list[str], list[int]]:
    """Members and slots, computed by the triple loop."""
    names = tuple(table.measured)
    matrix = table.matrix(names, num_slots)
    threshold = delta.samples_per_s(float(matrix[:, 0].max()))
    members, counts = fleet_peers.literal_flotilla(matrix, range(len(names)), threshold, skip_slower_counts)
    return [names[i] for i in members], counts


@given(rate_tables(), deltas)
@settings(deadline=None)
def test_equals_the_triple_loop_without_slower_counts(case: tuple[RateTable, int], delta: Delta) -> None:
    table, num_slots = case
    flotilla = create_flotilla(tuple(table.measured), table, num_slots, delta)
    assert (list(flotilla.dnn_ids), list(flotilla.num_slots)) == literal(table, num_slots, delta, True)


@given(st.one_of(rate_tables(growing=True), rate_tables(growing=True, whole=False)), deltas)
@settings(deadline=None)
def test_equals_eq_3_to_the_letter_where_rates_grow(case: tuple[RateTable, int], delta: Delta) -> None:
    table, num_slots = case
    flotilla = create_flotilla(tuple(table.measured), table, num_slots, delta)
    assert (list(flotilla.dnn_ids), list(flotilla.num_slots)) == literal(table, num_slots, delta, False)


@given(
    st.lists(st.floats(20.0, 180.0), min_size=1, max_size=8),
    st.integers(1, 60),
    st.floats(0.5, 1.05),
    deltas,
)
@settings(deadline=None)
def test_equals_the_triple_loop_where_eq_5_extrapolates(
    single: list[float], num_slots: int, efficiency: float, delta: Delta
) -> None:
    measured = {f"dnn{i}": {m: r * m * efficiency**m for m in (1, 2, 3, 4)} for i, r in enumerate(single)}
    table = RateTable(measured, slots_per_node=2)
    flotilla = create_flotilla(tuple(measured), table, num_slots, delta)
    assert (list(flotilla.dnn_ids), list(flotilla.num_slots)) == literal(table, num_slots, delta, True)


@given(rate_tables(), deltas, st.one_of(st.none(), st.integers(1, 10)))
@settings(deadline=None)
def test_a_flotilla_is_within_its_bounds(
    case: tuple[RateTable, int], delta: Delta, max_slots_per_dnn: int | None
) -> None:
    table, num_slots = case
    names = tuple(table.measured)
    flotilla = create_flotilla(names, table, num_slots, delta, max_slots_per_dnn)
    reference = max(table.rate(name, 1) for name in names)
    assert flotilla.reference_rate == reference
    assert len(set(flotilla.dnn_ids)) == len(flotilla.dnn_ids)
    assert set(flotilla.dnn_ids) <= set(names)
    assert min(flotilla.num_slots) >= 1
    assert sum(flotilla.num_slots) <= num_slots
    assert max(flotilla.num_slots) <= (max_slots_per_dnn or num_slots)
    threshold = delta.samples_per_s(reference)
    assert all(abs(rate - reference) <= threshold for rate in flotilla.rates_before)
    assert all(after >= before for before, after in zip(flotilla.rates_before, flotilla.rates, strict=True))
    expected = [table.rate(name, m) for name, m in zip(flotilla.dnn_ids, flotilla.num_slots, strict=True)]
    assert list(flotilla.rates) == expected


@given(rate_tables(), deltas, st.none() | st.integers(1, 12), st.data())
@settings(deadline=None)
def test_no_dnn_gets_more_slots_than_a_step_has_samples(
    case: tuple[RateTable, int], delta: Delta, max_slots_per_dnn: int | None, data: st.DataObject
) -> None:
    table, num_slots = case
    names = tuple(table.measured)
    batch_sizes = {name: data.draw(st.integers(1, 12)) for name in names}
    for flotilla in plan_all_flotillas(names, table, num_slots, delta, max_slots_per_dnn, batch_sizes):
        for name, count, rate in zip(flotilla.dnn_ids, flotilla.num_slots, flotilla.rates, strict=True):
            assert 1 <= count <= min(batch_sizes[name], max_slots_per_dnn or num_slots)
            assert rate == table.rate(name, count)
    enough = dict.fromkeys(names, num_slots)
    assert plan_all_flotillas(
        names, table, num_slots, delta, max_slots_per_dnn, enough
    ) == plan_all_flotillas(names, table, num_slots, delta, max_slots_per_dnn)


@given(rate_tables(), deltas)
@settings(deadline=None)
def test_slots_stay_free_only_where_no_dnn_gains(case: tuple[RateTable, int], delta: Delta) -> None:
    table, num_slots = case
    flotilla = create_flotilla(tuple(table.measured), table, num_slots, delta)
    free = num_slots - sum(flotilla.num_slots)
    for name, count, rate in zip(flotilla.dnn_ids, flotilla.num_slots, flotilla.rates, strict=True):
        assert all(table.rate(name, count + extra) <= rate for extra in range(1, free + 1))


@given(rate_tables(growing=True), deltas)
@settings(deadline=None)
def test_every_slot_is_used_where_rates_grow(case: tuple[RateTable, int], delta: Delta) -> None:
    table, num_slots = case
    assert sum(create_flotilla(tuple(table.measured), table, num_slots, delta).num_slots) == num_slots


@given(rate_tables(), deltas)
@settings(deadline=None)
def test_all_flotillas_hold_every_dnn_once_and_equal_one_by_one(
    case: tuple[RateTable, int], delta: Delta
) -> None:
    table, num_slots = case
    waiting = list(table.measured)
    one_by_one: list[Flotilla] = []
    while waiting:
        one_by_one.append(create_flotilla(waiting, table, num_slots, delta))
        waiting = [name for name in waiting if name not in one_by_one[-1].dnn_ids]
    planned = plan_all_flotillas(tuple(table.measured), table, num_slots, delta)
    assert planned == one_by_one
    assert sorted(name for f in planned for name in f.dnn_ids) == sorted(table.measured)


@given(rate_tables(), st.floats(0.0, 15.0), st.integers(1, 12))
@settings(deadline=None)
def test_nearest_rung_is_the_nearest_of_all_rungs(
    case: tuple[RateTable, int], target: float, limit: int
) -> None:
    table, num_slots = case
    rates = table.matrix(tuple(table.measured), num_slots)
    distances, counts = Ladders(rates).nearest(np.arange(len(rates)), target, limit)
    for row, distance, count in zip(rates.tolist(), distances, counts, strict=True):
        rungs = [
            m for m in range(1, min(limit, num_slots) + 1) if row[m - 1] > max(row[: m - 1], default=0.0)
        ]
        assert (distance, count) == min((abs(row[m - 1] - target), m) for m in rungs)


@given(rate_tables(), deltas, st.one_of(st.none(), st.integers(1, 10)), st.data())
@settings(deadline=None)
def test_a_planner_of_all_dnns_forms_the_flotillas_of_any_of_them(
    case: tuple[RateTable, int], delta: Delta, max_slots_per_dnn: int | None, data: st.DataObject
) -> None:
    table, largest = case
    sizes = {dnn_id: data.draw(st.integers(1, 12)) for dnn_id in table.measured}
    planner = FlotillaPlanner(tuple(table.measured), table, largest, delta, max_slots_per_dnn, sizes)
    for _ in range(3):
        names = data.draw(st.permutations(tuple(table.measured)))
        candidates = names[: data.draw(st.integers(1, len(names)))]
        num_slots = data.draw(st.integers(1, largest))
        alone = create_flotilla(candidates, table, num_slots, delta, max_slots_per_dnn, sizes)
        assert planner.flotilla(candidates, num_slots) == alone
        assert planner.flotilla(candidates, num_slots) == alone  # the one that is kept


@given(case=rate_tables(), delta=deltas, other=deltas)
def test_deltas_that_are_said_to_give_the_same_flotillas_do(
    case: tuple[RateTable, int], delta: Delta, other: Delta
) -> None:
    table, num_slots = case
    waiting = tuple(table.measured)
    planner = FlotillaPlanner(waiting, table, num_slots, delta)
    formed = []
    while waiting:
        formed.append(planner.flotilla(waiting, num_slots))
        waiting = tuple(d for d in waiting if d not in formed[-1].dnn_ids)
    assert planner.gives_same(delta)
    if planner.gives_same(other):
        assert plan_all_flotillas(tuple(table.measured), table, num_slots, other) == formed
