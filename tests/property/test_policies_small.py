"""Batch splits, preprocessors and rates under arbitrary arguments."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbal.errors import PolicyError
from hpcbal.policies.batching import split_evenly
from hpcbal.policies.preprocessors import num_preprocessors
from hpcbal.policies.rates import RateTable, profile_from_dict, profile_to_dict

rates = st.floats(0.01, 1e6)


@given(st.integers(0, 5000), st.integers(1, 300))
@settings(deadline=None)
def test_the_even_split_gives_each_sample_to_one_worker(num_samples: int, num_workers: int) -> None:
    counts = split_evenly(num_samples, num_workers)
    assert len(counts) == num_workers
    assert sum(counts) == num_samples
    assert counts[0] - counts[-1] <= 1
    assert list(counts) == sorted(counts, reverse=True)


@pytest.mark.parametrize(("num_samples", "num_workers"), [(-1, 2), (4, 0)])
def test_the_even_split_refuses_senseless_arguments(num_samples: int, num_workers: int) -> None:
    with pytest.raises(PolicyError, match="cannot split"):
        split_evenly(num_samples, num_workers)


@given(st.floats(0, 1e9), st.floats(0.01, 1e9), st.integers(1, 200))
@settings(deadline=None)
def test_one_preprocessor_fewer_is_not_enough(wanted: float, each: float, available: int) -> None:
    number = num_preprocessors(wanted, each, available)
    assert 1 <= number <= available
    assert number * each >= wanted or number == available
    assert number == 1 or (number - 1) * each < wanted


@given(
    st.dictionaries(st.integers(2, 12), rates, max_size=8),
    rates,
    st.integers(1, 8),
    st.integers(1, 40),
)
@settings(deadline=None)
def test_rates_are_positive_and_kept_as_measured(
    others: dict[int, float], single: float, slots_per_node: int, max_slots: int
) -> None:
    measured = {**others, 1: single}
    table = RateTable({"a": measured}, slots_per_node)
    row = table.matrix(("a",), max_slots)[0]
    assert (row >= 0).all()
    assert all(row[m - 1] == rate for m, rate in measured.items() if m <= max_slots)
    kept = profile_to_dict(table, {"a": "key"})
    assert profile_from_dict(kept, {"a": "key"}, slots_per_node) == table
