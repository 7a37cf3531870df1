"""Factors are non-negative, as good as those of others, and do not depend on how steps are split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn import decomposition
from sklearn.datasets import load_digits

from hpcbal.errors import InputError
from hpcbal.paramserver.alone import Alone, train_alone
from hpcbal.paramserver.api.batch import DataBlock, gather_batch, whole_block
from hpcbal.paramserver.api.columns import Ragged
from hpcbal.paramserver.apps import NMF
from hpcbal.paramserver.apps.sources import ArraySource

RANK = 4


def ratings_of(num_users: int = 200, num_items: int = 60) -> ArraySource:
    """Ratings of some items by each user, products of non-negative factors and some noise."""
    rng = np.random.default_rng(3)
    users, items = rng.gamma(1.0, 1.0, (num_users, RANK)), rng.gamma(1.0, 1.0, (num_items, RANK))
    named = [np.sort(rng.choice(num_items, rng.integers(1, 25), replace=False)) for _ in range(num_users)]
    values = [
        user @ items[ids].T + rng.normal(0.0, 0.1, len(ids)) for user, ids in zip(users, named, strict=True)
    ]
    return ArraySource({"items": Ragged.of(named), "ratings": Ragged.of(values)}, {"num_items": num_items})


def ridge_rmse(source: ArraySource, l2: float, num_sweeps: int) -> float:
    """The peer on ratings with gaps: alternating least squares, without bounds on the factors."""
    columns = source.read(np.arange(source.num_samples))
    named, values = columns["items"], columns["ratings"]
    assert isinstance(named, Ragged)
    assert isinstance(values, Ragged)
    users = np.repeat(np.arange(len(named)), named.lengths)
    rng = np.random.default_rng(0)
    factors = [rng.uniform(0, 1, (len(named), RANK)), rng.uniform(0, 1, (60, RANK))]
    for sweep in range(2 * num_sweeps):
        own, other = (users, named.values) if sweep % 2 == 0 else (named.values, users)
        fixed, solved = factors[1 - sweep % 2], factors[sweep % 2]
        for row in range(len(solved)):
            chosen = own == row
            basis = fixed[other[chosen]]
            gram = basis.T @ basis + l2 * max(1, chosen.sum()) * np.eye(RANK)
            solved[row] = np.linalg.solve(gram, basis.T @ values.values[chosen])
    errors = values.values - np.einsum("ij,ij->i", factors[0][users], factors[1][named.values])
    return float(np.sqrt(np.mean(errors**2)))


def test_it_is_as_good_as_scikit_learn_where_every_entry_is_known() -> None:
    images = load_digits().data[:300]
    peer = decomposition.NMF(8, init="random", random_state=0, max_iter=50, tol=0.0)
    peer_error = np.square(images - peer.fit_transform(images) @ peer.components_).mean()
    source = ArraySource(
        {"items": Ragged.of([np.arange(64)] * 300), "ratings": Ragged.of(list(images))}, {"num_items": 64}
    )
    _, metrics = train_alone(
        NMF(source, rank=8, learning_rate=3.0, decay=0.1), 60, mini_batch=30, num_data_blocks=3
    )
    assert metrics[-1]["rmse"] ** 2 == pytest.approx(metrics[-1]["loss"])
    assert metrics[-1]["loss"] < 1.05 * peer_error


def test_it_fits_ratings_with_gaps_as_well_as_alternating_least_squares() -> None:
    source = ratings_of()
    _, metrics = train_alone(
        NMF(source, rank=RANK, l2=1e-3, decay=0.02), 150, mini_batch=20, num_data_blocks=4
    )
    assert metrics[-1]["loss"] < metrics[0]["loss"] / 20
    assert metrics[-1]["rmse"] < 1.1 * ridge_rmse(source, 1e-3, 40)


@pytest.mark.parametrize("access", ["sparse", "dense"])
def test_factors_are_not_negative_and_curvatures_are_sums_over_users(access: Any) -> None:
    source = ratings_of()
    alone, _ = train_alone(NMF(source, rank=RANK, access=access), 3, mini_batch=20, num_data_blocks=4)
    columns = source.read(np.arange(source.num_samples))
    factors = np.concatenate([block.state["factors"] for block in alone.data_blocks])  # type: ignore[arg-type]
    named = columns["items"]
    assert isinstance(named, Ragged)
    sums = np.bincount(named.values, np.repeat(np.square(factors).sum(axis=1), named.lengths), 60)
    assert (factors >= 0).all()
    assert alone.values["items"][:, -1] == pytest.approx(sums)


def test_first_updates_leave_the_state_alone() -> None:
    """A block on disk is read anew, without what they would have changed."""
    app = NMF(ratings_of(), rank=RANK)
    columns = app.source.read(np.arange(200))
    state = app.initial_state(columns, np.random.default_rng(0))
    before = {name: np.array(column) for name, column in state.items()}
    app.initial_updates(whole_block(DataBlock(0, 0, columns, state), seed=0, epoch=0))
    for name, column in before.items():
        np.testing.assert_array_equal(state[name], column)  # type: ignore[arg-type]


def test_the_updates_of_a_step_are_the_sum_of_those_of_its_parts() -> None:
    app = NMF(ratings_of(), rank=RANK, l2=0.01)
    alone = Alone(app, mini_batch=20, num_data_blocks=2)
    values = alone.values["items"] - 0.3  # some factors are below 0

    def push(numbers: list[int]) -> Any:
        blocks = [
            DataBlock(b.number, b.first_sample, b.columns, {n: np.copy(a) for n, a in b.state.items()})  # type: ignore[arg-type]
            for b in alone.data_blocks
        ]
        slices = [(blocks[number], 0, np.arange(10)) for number in numbers]
        batch = gather_batch(slices, seed=0, epoch=0, step_samples=20)
        update = app.compute(batch, {"items": values[app.needs(batch)["items"]]})["items"]
        deltas = np.zeros_like(values)
        deltas[update.rows] = update.deltas  # type: ignore[union-attr]
        return deltas

    assert push([0, 1]) == pytest.approx(push([0]) + push([1]), rel=1e-12, abs=1e-12)


def test_wrong_arguments_are_errors() -> None:
    with pytest.raises(InputError, match=r"args.rank of NMF: got 0, allowed: a number >= 1"):
        NMF(ratings_of(), rank=0)
    with pytest.raises(InputError, match=r"args.access of NMF: got 'full', allowed: sparse, dense"):
        NMF(ratings_of(), access="full")  # type: ignore[arg-type]
