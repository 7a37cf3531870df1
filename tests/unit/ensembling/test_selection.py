"""Greedy selection takes what an exhaustive search would, and never makes the ensemble worse."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.ensembling.selection import greedy_selection, log_loss_of_mean, squared_error_of_mean
from hpcbal.errors import PolicyError


def brute_force(predictions: np.ndarray, loss: object, most_rounds: int) -> tuple[tuple[int, ...], float]:
    """The greedy path, by trying each list of DNNs that extends the one before by one."""
    path: list[int] = []
    nested = []
    for _ in range(most_rounds):
        tried = [(loss(predictions[[*path, d]].mean(axis=0)), d) for d in range(len(predictions))]  # type: ignore[operator]
        lowest = min(value for value, _ in tried)
        path.append(next(d for value, d in tried if value <= lowest * (1 + 1e-12)))
        nested.append((lowest, list(path)))
    best = min(value for value, _ in nested)
    chosen = next(taken for value, taken in nested if value <= best * (1 + 1e-12))
    return tuple(chosen.count(d) for d in range(len(predictions))), best


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 6), st.integers(1, 7))
def test_it_is_the_greedy_path_of_a_brute_force(seed: int, dnns: int, items: int, rounds: int) -> None:
    truth = np.random.default_rng(seed).uniform(0.01, 0.99, (dnns, items))
    selection = greedy_selection(truth, log_loss_of_mean, rounds)
    counts, loss = brute_force(truth, log_loss_of_mean, rounds)
    assert selection.counts == counts
    assert selection.loss == pytest.approx(loss, rel=1e-12)
    assert sum(selection.weights) == pytest.approx(1.0)


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 5))
def test_it_is_no_worse_than_the_best_dnn_and_no_better_than_every_multiset(
    seed: int, dnns: int, items: int
) -> None:
    rng = np.random.default_rng(seed)
    labels, values = rng.normal(size=items), rng.normal(size=(dnns, items))
    loss = squared_error_of_mean(labels)
    selection = greedy_selection(values, loss, most_rounds=4)
    assert selection.loss <= min(loss(row) for row in values) + 1e-12
    multisets = (
        chosen
        for size in range(1, 5)
        for chosen in itertools.combinations_with_replacement(range(dnns), size)
    )
    assert selection.loss >= min(loss(values[list(chosen)].mean(axis=0)) for chosen in multisets) - 1e-12


def test_two_dnns_that_err_on_opposite_sides_are_taken_equally_often() -> None:
    values = np.array([[1.0, 1.0], [-1.0, -1.0], [5.0, 5.0]])
    selection = greedy_selection(values, squared_error_of_mean(np.zeros(2)))
    assert selection.counts == (1, 1, 0)
    assert selection.loss == 0.0
    assert selection.weights == (0.5, 0.5, 0.0)


def test_of_equal_dnns_the_first_is_taken_once() -> None:
    selection = greedy_selection(np.full((3, 4), 0.25), log_loss_of_mean)
    assert selection.counts == (1, 0, 0)


def test_a_probability_of_zero_has_a_finite_loss() -> None:
    assert np.isfinite(log_loss_of_mean(np.zeros(3)))


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_nothing_to_choose_from_is_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(PolicyError, match="at least one DNN"):
        greedy_selection(np.zeros(shape), log_loss_of_mean)
