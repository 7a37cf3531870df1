"""Factors of full matrices are as good as scikit-learn's, and the servers' sums are those of all rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn import decomposition
from sklearn.datasets import load_digits

from hpcbal.paramserver.alone import Alone, train_alone
from hpcbal.paramserver.api.batch import DataBlock, gather_batch
from hpcbal.paramserver.apps import DenseNMF
from hpcbal.paramserver.apps.sources import ArraySource

IMAGES = load_digits().data[:400]
SOURCE = ArraySource({"features": IMAGES}, {"num_features": 64})


def test_it_is_as_good_as_scikit_learn() -> None:
    peer = decomposition.NMF(8, init="random", random_state=0, max_iter=50, tol=0.0)
    peer_error = np.square(IMAGES - peer.fit_transform(IMAGES) @ peer.components_).mean()
    _, metrics = train_alone(DenseNMF(SOURCE, rank=8), 40, mini_batch=50, num_data_blocks=3)
    assert metrics[-1]["loss"] == pytest.approx(metrics[-1]["rmse"] ** 2)
    assert metrics[-1]["loss"] < 1.02 * peer_error


def test_the_servers_hold_the_sums_over_all_rows_and_no_factor_is_negative() -> None:
    alone, metrics = train_alone(DenseNMF(SOURCE, rank=8, l2=0.01), 3, mini_batch=50, num_data_blocks=4)
    factors = np.concatenate([block.state["factors"] for block in alone.data_blocks])  # type: ignore[arg-type]
    columns = alone.values["factors"]
    assert factors.min() >= 0
    assert columns.min() >= 0
    assert alone.values["gram"] == pytest.approx(factors.T @ factors)
    assert alone.values["products"] == pytest.approx(IMAGES.T @ factors)
    mean = np.square(IMAGES - factors @ columns.T).mean()
    squares = np.square(factors).sum() / 400 + np.square(columns).sum() / 64
    assert metrics[-1]["loss"] == pytest.approx(mean + 0.01 * squares)


def test_the_regulariser_shrinks_factors() -> None:
    norms = []
    for l2 in (0.0, 1.0):
        alone, _ = train_alone(DenseNMF(SOURCE, rank=8, l2=l2), 10, mini_batch=50)
        norms.append(np.square(alone.values["factors"]).sum())
    assert norms[1] < norms[0]


def test_the_updates_of_a_step_are_the_sum_of_those_of_its_parts() -> None:
    app = DenseNMF(SOURCE, rank=8)
    alone, _ = train_alone(app, 1, mini_batch=50, num_data_blocks=2)
    assert isinstance(alone, Alone)

    def push(numbers: list[int]) -> Any:
        blocks = [
            DataBlock(b.number, b.first_sample, b.columns, {n: np.copy(a) for n, a in b.state.items()})  # type: ignore[arg-type]
            for b in alone.data_blocks
        ]
        slices = [(blocks[number], 0, np.arange(30 + number)) for number in numbers]
        return app.compute(gather_batch(slices, seed=0, epoch=1, step_samples=61), alone.values)

    whole, parts = push([0, 1]), [push([0]), push([1])]
    for table, deltas in whole.items():
        assert np.any(deltas)
        assert deltas == pytest.approx(parts[0][table] + parts[1][table], rel=1e-9, abs=1e-9)


def test_a_relaxed_step_makes_a_share_of_the_change_and_what_is_below_0_counts_as_0() -> None:
    alone = Alone(DenseNMF(SOURCE, rank=8), mini_batch=50)
    alone.train_epoch()
    values = dict(alone.values)
    values["factors"] = values["factors"] - 0.2
    batch = gather_batch([(alone.data_blocks[0], 0, np.arange(50))], seed=0, epoch=1)
    full, half = (
        np.asarray(DenseNMF(SOURCE, rank=8, relaxation=share).compute(batch, values)["factors"])
        for share in (1.0, 0.5)
    )
    assert half == pytest.approx(full / 2)
    assert (values["factors"] + full).min() >= -1e-12
