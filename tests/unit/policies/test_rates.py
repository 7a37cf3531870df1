"""Rates: measured where known, Eq. 5 beyond, and the documented rules in between."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbal.errors import PolicyError
from hpcbal.policies.rates import (
    ASSUMED_EFFICIENCY_PER_ADDED_SLOT,
    RateTable,
    profiling_counts,
    rate_key,
)


def test_measured_rates_are_returned_as_measured() -> None:
    measured = {1: 10.0, 2: 19.0, 3: 17.0, 4: 33.0}
    table = RateTable({"a": measured}, slots_per_node=2)
    assert [table.rate("a", m) for m in measured] == list(measured.values())


def test_beyond_the_measured_counts_the_rate_is_eq_5() -> None:
    rates = {1: 10.0, 2: 19.5, 3: 28.0, 4: 36.0, 5: 41.0, 6: 47.0}
    table = RateTable({"a": rates}, slots_per_node=2)
    m_b = 4
    for m in (7, 8, 20):
        eq_5 = m * rates[m_b] / m_b * (rates[m_b] / rates[m_b - 1] * (m_b - 1) / m_b) ** (m - m_b)
        assert table.rate("a", m) == pytest.approx(eq_5, rel=1e-12)


def test_without_m_b_the_largest_measured_counts_stand_in() -> None:
    table = RateTable({"a": {1: 10.0, 2: 19.0, 3: 27.0}}, slots_per_node=4)
    assert table.rate("a", 5) == pytest.approx(5 * 9.0 * (9.0 / 9.5) ** 2)


def test_without_the_count_below_m_b_the_decay_is_spread_over_the_gap() -> None:
    table = RateTable({"a": {1: 10.0, 2: 19.0, 4: 32.0}}, slots_per_node=2)
    assert table.rate("a", 6) == pytest.approx(6 * 8.0 * (8.0 / 9.5))


def test_a_gap_between_measured_counts_is_interpolated_per_slot() -> None:
    table = RateTable({"a": {1: 10.0, 2: 19.0, 4: 32.0}}, slots_per_node=2)
    assert table.rate("a", 3) == pytest.approx(3 * math.sqrt(9.5 * 8.0))


def test_superlinear_noise_is_not_extrapolated_beyond_linear() -> None:
    table = RateTable({"a": {1: 10.0, 2: 21.0}}, slots_per_node=1)
    assert table.rate("a", 2) == 21.0
    assert table.rate("a", 100) == pytest.approx(100 * 10.5)


def test_one_measurement_scales_less_than_linearly() -> None:
    table = RateTable({"a": {1: 10.0}}, slots_per_node=4)
    assert table.rate("a", 3) == pytest.approx(30.0 * ASSUMED_EFFICIENCY_PER_ADDED_SLOT**2)
    assert 10.0 < table.rate("a", 2) < 20.0


def test_matrix_holds_the_rates() -> None:
    table = RateTable({"a": {1: 10.0, 2: 19.0, 5: 30.0}, "b": {1: 3.0}, "c": {1: 1.0, 2: 3.0}}, 1)
    matrix = table.matrix(("c", "a", "b"), 9)
    assert matrix.shape == (3, 9)
    assert matrix.dtype == np.float64
    for row, name in zip(matrix, ("c", "a", "b"), strict=True):
        np.testing.assert_allclose(row, [table.rate(name, m) for m in range(1, 10)], rtol=1e-14)


def each_alone(table: RateTable, dnn_id: str, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The rates of one DNN by the formula of the class, step by step: the oracle for all DNNs at once."""
    by_count = table.measured[dnn_id]
    known, rates = np.array(list(by_count)), np.array(list(by_count.values()))
    base, efficiency = int(known[-1]), ASSUMED_EFFICIENCY_PER_ADDED_SLOT
    if len(known) > 1:
        base = 2 * table.slots_per_node if 2 * table.slots_per_node in by_count else base
        below = int(known[list(known).index(base) - 1])
        ratio = (by_count[base] / base) / (by_count[below] / below)
        efficiency = min(1.0, ratio ** (1.0 / (base - below)))
    per_slot = rates / known
    decays = np.append((per_slot[1:] / per_slot[:-1]) ** (1.0 / np.diff(known)), efficiency)
    anchor = np.searchsorted(known, counts, side="right") - 1
    beyond = counts > known[-1]
    start = np.where(beyond, base, known[anchor])
    start_rate = np.where(beyond, by_count[base] / base, per_slot[anchor])
    estimated = counts * start_rate * decays[anchor] ** (counts - start).astype(np.float64)
    result: npt.NDArray[np.float64] = np.where(known[anchor] == counts, rates[anchor], estimated)
    return result


@given(
    st.lists(st.dictionaries(st.integers(2, 9), st.floats(0.5, 400.0), max_size=5), min_size=1, max_size=8),
    st.integers(1, 4),
    st.integers(1, 40),
)
@settings(deadline=None, max_examples=30)
def test_all_dnns_at_once_get_bit_for_bit_the_rates_that_each_gets_alone(
    further: list[dict[int, float]], slots_per_node: int, max_slots: int
) -> None:
    table = RateTable({f"d{i}": {1: 10.0 + i, **more} for i, more in enumerate(further)}, slots_per_node)
    names = tuple(reversed(table.measured))
    matrix, counts = table.matrix(names, max_slots), np.arange(1, max_slots + 1)
    for name, row in zip(names, matrix, strict=True):
        assert row.tolist() == each_alone(table, name, counts).tolist()
        for _ in range(2):  # the second time from what the table remembers
            assert [table.rate(name, m) for m in range(1, max_slots + 1)] == row.tolist()


def test_rates_of_thousands_of_slots_are_finite() -> None:
    matrix = RateTable({"a": {1: 10.0, 2: 5.0}}, slots_per_node=1).matrix(("a",), 8192)
    assert np.isfinite(matrix).all()
    assert matrix.min() >= 0.0


def test_a_measurement_is_added_or_replaced_in_a_new_table() -> None:
    table = RateTable({}, slots_per_node=2)
    later = table.with_measurement("a", 2, 18.0).with_measurement("a", 1, 10.0).with_measurement("a", 2, 19.0)
    assert later.measured == {"a": {1: 10.0, 2: 19.0}}
    assert table.measured == {}
    assert later.is_measured("a", 2)
    assert not later.is_measured("a", 3)
    assert not later.is_measured("b", 1)


def test_a_table_survives_pickling_and_later_changes_of_its_source() -> None:
    source = {"a": {1: 10.0}}
    table = RateTable(source, slots_per_node=2)
    source["a"][1] = 99.0
    assert pickle.loads(pickle.dumps(table)) == RateTable({"a": {1: 10.0}}, slots_per_node=2)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_rate_is_named(rate: float) -> None:
    with pytest.raises(PolicyError, match=r"'a' on 2 slots.*allowed: above 0"):
        RateTable({"a": {1: 10.0, 2: rate}}, slots_per_node=2)


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_an_impossible_count_is_named(count: int) -> None:
    with pytest.raises(PolicyError, match="number of slots"):
        RateTable({"a": {count: 10.0}}, slots_per_node=2)


def test_slots_per_node_must_be_positive() -> None:
    with pytest.raises(PolicyError, match="slots_per_node: got 0"):
        RateTable({}, slots_per_node=0)


def test_a_dnn_without_a_single_slot_rate_is_named() -> None:
    table = RateTable({"a": {2: 10.0}}, slots_per_node=2)
    with pytest.raises(PolicyError, match=r"'a' on 1 slot.*\[2\]"):
        table.rate("a", 2)
    with pytest.raises(PolicyError, match="'b'"):
        table.matrix(("b",), 4)
    with pytest.raises(PolicyError, match="0 slots"):
        table.rate("a", 0)


@pytest.mark.parametrize(
    ("rates", "slots_per_node", "num_slots", "max_slots", "most"),
    [
        ([10.0, 176.0], 4, 100, None, 18),  # M_a = ceil(17.6)
        ([100.0, 176.0], 4, 100, None, 8),  # M_b
        ([100.0, 176.0], 4, 6, None, 6),
        ([10.0, 176.0], 4, 100, 3, 3),
        ([10.0], 1, 1, None, 1),
        ([1e-300, 1e300], 4, 64, None, 64),
    ],
)
def test_profiling_goes_up_to_m_t(
    rates: list[float], slots_per_node: int, num_slots: int, max_slots: int | None, most: int
) -> None:
    assert profiling_counts(rates, slots_per_node, num_slots, max_slots) == tuple(range(1, most + 1))


def test_profiling_counts_refuse_senseless_arguments() -> None:
    with pytest.raises(PolicyError, match="profile every DNN on 1 slot"):
        profiling_counts([], 4, 4)
    with pytest.raises(PolicyError, match="max_slots: got 0"):
        profiling_counts([1.0], 4, 4, 0)
    with pytest.raises(PolicyError, match="above 0"):
        profiling_counts([0.0], 4, 4)


KEY_FIELDS: dict[str, Any] = {
    "model": "hpcbal.models:resnet",
    "args": {"depth": 20, "width": 16},
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "batch_size": 32,
    "sample_shape": (8, 8, 1),
    "num_classes": 10,
    "device": "cpu/float32",
}


def test_the_rate_key_is_stable() -> None:
    reordered = KEY_FIELDS | {"args": {"width": 16, "depth": 20}, "sample_shape": [8, 8, 1]}
    assert rate_key(**KEY_FIELDS) == rate_key(**reordered) == "43d006b9c74f087e"
    assert rate_key(**KEY_FIELDS, accumulate=1) == rate_key(**KEY_FIELDS)
    assert rate_key(**KEY_FIELDS, augment=[]) == rate_key(**KEY_FIELDS)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "hpcbal.models:densenet"},
        {"args": {"depth": 32, "width": 16}},
        {"optimizer": {"name": "adam", "learning_rate": 0.1}},
        {"batch_size": 64},
        {"accumulate": 2},
        {"sample_shape": (8, 8, 3)},
        {"sample_shape": (None, None, 1)},
        {"num_classes": 100},
        {"device": "gpu/float32"},
        {"compile": True},
        {"augment": [("random_flip", {})]},
    ],
)
def test_the_rate_key_distinguishes_what_matters(change: dict[str, object]) -> None:
    assert rate_key(**(KEY_FIELDS | change)) != rate_key(**KEY_FIELDS)


def test_the_rate_key_refuses_values_that_are_not_plain() -> None:
    with pytest.raises(PolicyError, match="plain values"):
        rate_key(**(KEY_FIELDS | {"args": {"f": object()}}))
