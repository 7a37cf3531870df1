"""Coordinate descent in parts reaches scikit-learn's optimum, for dense and for sparse features."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from sklearn import linear_model
from sklearn.datasets import load_diabetes
from sklearn.exceptions import ConvergenceWarning

from hpcbal.errors import InputError
from hpcbal.paramserver.alone import Alone, train_alone
from hpcbal.paramserver.api.batch import DataBlock, gather_batch, order_of_block, scatter_state
from hpcbal.paramserver.api.columns import Ragged
from hpcbal.paramserver.apps import Lasso
from hpcbal.paramserver.apps.sources import ArraySource


class Regression(ArraySource):
    """Columns of X as samples, and the target."""

    def __init__(self, x: Any, target: Any, is_sparse: bool) -> None:
        if is_sparse:
            rows = [np.flatnonzero(column) for column in x.T]
            values = [column[ids] for column, ids in zip(x.T, rows, strict=True)]
            super().__init__({"rows": Ragged.of(rows), "values": Ragged.of(values)}, {})
        else:
            super().__init__({"column": np.ascontiguousarray(x.T)}, {})
        self.x, self.target = x, target


def diabetes() -> Regression:
    x, y = load_diabetes(return_X_y=True)
    return Regression(x / x.std(axis=0), (y - y.mean()) / y.std(), False)


def generated(is_sparse: bool) -> Regression:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(120, 80)) * (rng.random((120, 80)) < 0.1) + 0.0
    x[:, 7] = 0.0  # a feature that nobody has
    x[:, 40:] += 0.5 * x[:, :40]  # correlated features
    weights = rng.normal(size=80) * (rng.random(80) < 0.2)
    return Regression(x, x @ weights + 0.1 * rng.normal(size=120), is_sparse)


def loss_of(source: Regression, weights: Any, l1: float) -> float:
    return float(np.square(source.target - source.x @ weights).mean() / 2 + l1 * np.abs(weights).sum())


@pytest.mark.parametrize("mini_batch", [1, 4, 10])
@pytest.mark.parametrize("l1", [0.02, 0.2])
def test_it_reaches_the_optimum_of_scikit_learn_on_real_data(mini_batch: int, l1: float) -> None:
    source = diabetes()
    peer = linear_model.Lasso(alpha=l1, fit_intercept=False, tol=1e-10).fit(source.x, source.target)
    alone, metrics = train_alone(Lasso(source, l1=l1), 150, mini_batch=mini_batch, num_data_blocks=2)
    weights = np.concatenate([block.state["weight"] for block in alone.data_blocks])  # type: ignore[arg-type]
    assert metrics[-1]["loss"] == pytest.approx(loss_of(source, weights, l1))
    assert metrics[-1]["loss"] == pytest.approx(loss_of(source, peer.coef_, l1), rel=1e-3)
    assert metrics[-1]["num_nonzero"] == np.count_nonzero(peer.coef_)
    losses = [each["loss"] for each in metrics]
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(losses))


FORMS = [(False, "dense"), (True, "dense"), (True, "sparse")]


@pytest.mark.parametrize(("is_sparse", "access"), FORMS)
@pytest.mark.parametrize("mini_batch", [10, 80])
def test_it_reaches_the_optimum_with_features_of_few_observations(
    is_sparse: bool, access: Any, mini_batch: int
) -> None:
    source = generated(is_sparse)
    peer = linear_model.Lasso(alpha=0.005, fit_intercept=False, tol=1e-10).fit(source.x, source.target)
    alone, metrics = train_alone(
        Lasso(source, l1=0.005, access=access), 100, mini_batch=mini_batch, num_data_blocks=4
    )
    assert metrics[-1]["loss"] == pytest.approx(loss_of(source, peer.coef_, 0.005), rel=1e-3)
    weights = np.concatenate([block.state["weight"] for block in alone.data_blocks])  # type: ignore[arg-type]
    assert alone.values["residual"][:, 0] == pytest.approx(source.target - source.x @ weights, abs=1e-9)


def test_one_feature_a_step_is_coordinate_descent() -> None:
    source = diabetes()
    alone = Alone(Lasso(source, l1=0.05), mini_batch=10, num_data_blocks=10)
    block = alone.data_blocks[3]
    batch = gather_batch([(block, 0, np.array([0]))], seed=0, epoch=0)
    update = Lasso(source, l1=0.05).compute(batch, {"residual": source.target[:, np.newaxis]})["residual"]
    x = source.x[:, 3]
    slope = x @ source.target / len(x)
    weight = np.sign(slope) * max(abs(slope) - 0.05, 0.0) / np.square(x).mean()
    assert batch.array("weight") == pytest.approx([weight])
    assert np.asarray(update)[:, 0] == pytest.approx(-weight * x)


@pytest.mark.parametrize(("is_sparse", "access"), FORMS)
def test_the_updates_of_a_step_are_the_sum_of_those_of_its_parts(is_sparse: bool, access: Any) -> None:
    source = generated(is_sparse)
    app = Lasso(source, l1=0.01, access=access)
    alone = Alone(app, mini_batch=20, num_data_blocks=2)

    def push(numbers: list[int]) -> Any:
        deltas = np.zeros((120, 1))
        blocks = [
            DataBlock(b.number, b.first_sample, b.columns, {n: np.copy(a) for n, a in b.state.items()})  # type: ignore[arg-type]
            for b in alone.data_blocks
        ]
        slices = [(blocks[number], 0, np.arange(5, 25)) for number in numbers]
        batch = gather_batch(slices, seed=0, epoch=0, step_samples=40)
        rows = app.needs(batch).get("residual", np.arange(120))
        deltas[rows] = app.compute(batch, {"residual": source.target[rows, np.newaxis]})["residual"]
        return deltas

    assert push([0, 1]).any()
    assert push([0, 1]) == pytest.approx(push([0]) + push([1]), rel=1e-12, abs=1e-12)


def test_one_block_is_the_cyclic_coordinate_descent_of_scikit_learn() -> None:
    """One pass over the features in the epoch's order, which the peer gets as its columns."""
    source = diabetes()
    alone, _ = train_alone(Lasso(source, l1=0.05, passes=1), 1, mini_batch=10)
    order = order_of_block(0, 0, 0, 10)
    peer = linear_model.Lasso(alpha=0.05, fit_intercept=False, tol=0.0, max_iter=1)
    with pytest.warns(ConvergenceWarning):
        peer.fit(source.x[:, order], source.target)
    assert np.asarray(alone.data_blocks[0].state["weight"])[order] == pytest.approx(peer.coef_, rel=1e-10)


def test_few_turns_over_all_features_solve_the_problem() -> None:
    """The first finds the weights of nearly the right features, the others what these leave."""
    source = diabetes()
    peer = linear_model.Lasso(alpha=0.05, fit_intercept=False, tol=1e-10).fit(source.x, source.target)
    _, metrics = train_alone(Lasso(source, l1=0.05, passes=200), 4, mini_batch=10)
    assert metrics[0]["loss"] == pytest.approx(loss_of(source, peer.coef_, 0.05), rel=1e-2)
    assert metrics[3]["loss"] == pytest.approx(loss_of(source, peer.coef_, 0.05), rel=1e-9)


@pytest.mark.parametrize(("is_sparse", "access"), FORMS)
def test_the_optimum_fulfils_the_conditions_of_karush_kuhn_and_tucker(is_sparse: bool, access: Any) -> None:
    source, l1 = generated(is_sparse), 0.01
    alone, _ = train_alone(Lasso(source, l1=l1, access=access), 300, mini_batch=30, num_data_blocks=3)
    weights = np.concatenate([block.state["weight"] for block in alone.data_blocks])  # type: ignore[arg-type]
    slopes = source.x.T @ (source.target - source.x @ weights) / len(source.target)
    assert (np.abs(slopes) <= l1 + 1e-7).all()
    assert slopes[weights != 0.0] == pytest.approx(l1 * np.sign(weights[weights != 0.0]), abs=1e-7)
    assert 0 < np.count_nonzero(weights) < 80


@pytest.mark.parametrize("num_data_blocks", [2, 3, 7, 20])
def test_equal_features_in_unlike_blocks_do_not_make_the_loss_grow(num_data_blocks: int) -> None:
    """The worst data there is: every block finds the whole step, and all of them take it."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 1)) @ np.ones((1, 20)) + 1e-3 * rng.normal(size=(50, 20))
    source = Regression(x, 3.0 * x[:, 0] + rng.normal(size=50), False)
    _, metrics = train_alone(Lasso(source, l1=0.1), 40, mini_batch=20, num_data_blocks=num_data_blocks)
    losses = [each["loss"] for each in metrics]
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(losses))
    peer = linear_model.Lasso(alpha=0.1, fit_intercept=False, tol=1e-4, max_iter=10**5).fit(x, source.target)
    assert losses[-1] == pytest.approx(loss_of(source, peer.coef_, 0.1), rel=1e-2)


@pytest.mark.parametrize(("damping", "is_falling"), [("estimated", False), ("safe", True)])
def test_safe_damping_bears_equal_features_that_hardly_any_draw_finds(damping: str, is_falling: bool) -> None:
    """Six equal features among 3,000 others that share no row with any."""
    x = np.eye(3000)
    for block in range(6):
        x[:, 500 * block] = 0.0
        x[0, 500 * block] = 1.0
    source = Regression(x, 100.0 * (np.arange(3000) == 0), False)
    _, metrics = train_alone(Lasso(source, l1=1e-4, damping=damping), 6, mini_batch=3000, num_data_blocks=6)
    losses = [each["loss"] for each in metrics]
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(losses)) == is_falling


@pytest.mark.parametrize(("overlap", "is_falling"), [(1, False), (3, True)])
def test_turns_that_overlap_are_damped_by_overlap(overlap: int, is_falling: bool) -> None:
    """Three asynchronous workers on equal features: all pull before any pushes."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 1)) @ np.ones((1, 6)) + 1e-3 * rng.normal(size=(50, 6))
    source = Regression(x, 3.0 * x[:, 0], False)
    app = Lasso(source, l1=0.01, overlap=overlap)
    blocks = Alone(app, mini_batch=6, num_data_blocks=3).data_blocks
    residual, losses = source.target[:, np.newaxis].copy(), []
    for epoch in range(8):
        changes = []
        for block in blocks:
            slices = [(block, 0, np.arange(2))]
            batch = gather_batch(slices, seed=0, epoch=epoch)
            changes.append(app.compute(batch, {"residual": residual})["residual"])
            scatter_state(batch, slices)
        residual = residual + sum(np.asarray(change) for change in changes)
        weights = np.concatenate([block.state["weight"] for block in blocks])  # type: ignore[arg-type]
        losses.append(loss_of(source, weights, 0.01))
    assert all(later <= earlier + 1e-9 for earlier, later in pairwise(losses)) == is_falling


def test_numbers_out_of_range_are_errors() -> None:
    for wrong in ({"passes": 0}, {"overlap": 0.5}, {"l1": -1.0}):
        with pytest.raises(InputError, match=f"args.{next(iter(wrong))} of Lasso: got"):
            Lasso(diabetes(), **wrong)  # type: ignore[arg-type]


def test_data_without_a_target_is_an_error() -> None:
    with pytest.raises(InputError, match="Lasso needs a dataset with an attribute `target`"):
        Lasso(ArraySource({"column": np.ones((3, 2))}, {}))


def test_dense_features_have_no_sparse_residual() -> None:
    with pytest.raises(InputError, match=r"args.access of Lasso: got sparse, but the features .* are dense"):
        Lasso(diabetes(), access="sparse")
