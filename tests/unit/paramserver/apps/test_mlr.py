"""Multinomial logistic regression reaches scikit-learn's optimum, and splits of a step add up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from hpcbal.errors import InputError
from hpcbal.paramserver.alone import train_alone
from hpcbal.paramserver.api.batch import DataBlock, gather_batch
from hpcbal.paramserver.api.columns import Ragged
from hpcbal.paramserver.api.update import AppError
from hpcbal.paramserver.apps import MLR
from hpcbal.paramserver.apps.sources import ArraySource

L2 = 1e-2
X, Y = load_digits(return_X_y=True)
X = X[:600] / 16.0
Y = Y[:600]
FACTS = {"num_features": 64, "num_classes": 10}


def dense() -> ArraySource:
    return ArraySource({"features": X, "labels": Y}, FACTS)


def sparse() -> ArraySource:
    named = [np.flatnonzero(row) for row in X]
    values = [row[ids] for row, ids in zip(X, named, strict=True)]
    return ArraySource({"indices": Ragged.of(named), "values": Ragged.of(values), "labels": Y}, FACTS)


def loss_of(weights: Any, bias: Any, l2: float) -> float:
    scores = X @ weights + bias
    log_p = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return float(-log_p[np.arange(len(Y)), Y].mean() + l2 / 2 * np.square(weights).sum())


@pytest.mark.parametrize("source", [dense(), sparse()])
def test_it_reaches_the_optimum_of_scikit_learn(source: ArraySource) -> None:
    peer = LogisticRegression(C=1 / (L2 * len(X)), max_iter=2000, tol=1e-8).fit(X, Y)
    optimum = loss_of(peer.coef_.T, peer.intercept_, L2)
    alone, metrics = train_alone(
        MLR(source, learning_rate=2.0, decay=0.3, l2=L2), 40, mini_batch=50, num_data_blocks=3
    )
    assert metrics[-1]["loss"] == pytest.approx(loss_of(alone.values["weights"], alone.values["bias"], L2))
    assert optimum <= metrics[-1]["loss"] <= 1.01 * optimum
    assert metrics[-1]["accuracy"] == pytest.approx(peer.score(X, Y), abs=0.01)


def test_full_batches_are_gradient_descent_for_both_forms_of_samples() -> None:
    probabilities = np.full((len(Y), 10), 0.1) - np.eye(10)[Y]
    for source in (dense(), sparse()):
        alone, metrics = train_alone(MLR(source, learning_rate=0.3), 1, mini_batch=len(Y), num_data_blocks=4)
        assert alone.values["weights"] == pytest.approx(-0.3 * X.T @ probabilities / len(Y))
        assert alone.values["bias"] == pytest.approx(-0.3 * probabilities.mean(axis=0, keepdims=True))
        assert metrics[0]["loss"] == pytest.approx(
            loss_of(alone.values["weights"], alone.values["bias"], 0.0)
        )


@pytest.mark.parametrize("source", [dense(), sparse()])
def test_the_updates_of_a_step_are_the_sum_of_those_of_its_parts(source: ArraySource) -> None:
    app = MLR(source, l2=L2)
    rng = np.random.default_rng(0)
    weights, bias = rng.normal(size=(64, 10)), rng.normal(size=(1, 10))
    frequency = np.count_nonzero(X, axis=0)[:, np.newaxis]
    blocks = [DataBlock(i, 30 * i, source.read(np.arange(30 * i, 30 * i + 30)), {}) for i in range(2)]

    def push(slices: Any) -> tuple[Any, Any]:
        batch = gather_batch(slices, seed=0, epoch=0, step_samples=25)
        rows = app.needs(batch).get("weights", np.arange(64))
        pulled = {"weights": weights[rows], "bias": bias, "frequency": frequency[rows]}
        updates = app.compute(batch, pulled)
        deltas = np.zeros((64, 10))
        deltas[rows] = updates["weights"]
        return deltas, updates["bias"]

    slices = [(blocks[0], 0, np.arange(10)), (blocks[1], 3, np.arange(15, 30))]
    whole, parts = push(slices), [push([each]) for each in slices]
    assert whole[0] == pytest.approx(parts[0][0] + parts[1][0], rel=1e-12)
    assert whole[1] == pytest.approx(parts[0][1] + parts[1][1], rel=1e-12)


def test_float32_halves_the_table_and_trains_as_well() -> None:
    source = ArraySource({"features": X.astype(np.float32), "labels": Y}, FACTS)
    alone, metrics = train_alone(MLR(source, dtype="float32"), 5, mini_batch=50)
    assert alone.values["weights"].dtype == np.float32
    _, doubles = train_alone(MLR(dense()), 5, mini_batch=50)
    assert metrics[-1]["loss"] == pytest.approx(doubles[-1]["loss"], rel=1e-4)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"learning_rate": 0}, "args.learning_rate of MLR: got 0, allowed: a number > 0"),
        ({"l2": -1.0}, "args.l2 of MLR: got -1.0, allowed: a number >= 0"),
        ({"decay": "1"}, "args.decay of MLR: got '1', allowed: a number >= 0"),
        ({"dtype": "int32"}, "args.dtype of MLR: got 'int32', allowed: float64, float32"),
    ],
)
def test_wrong_arguments_are_errors(args: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as raised:
        MLR(dense(), **args)
    assert message in str(raised.value)


def test_data_that_does_not_state_its_classes_is_an_error() -> None:
    with pytest.raises(InputError, match="MLR needs a dataset that states num_features"):
        MLR(ArraySource({"features": X, "labels": Y}, {"num_classes": 10}))


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        (np.where(Y > 4, 1, -1), "column 'labels' has -1, expected 0 to 9"),
        (Y + 1, "column 'labels' has 10, expected 0 to 9"),
        (Y.astype(float), "column 'labels' has type float64"),
        (Y[:, np.newaxis], r"shape \(300, 1\), expected one whole number for each sample"),
    ],
)
def test_labels_that_are_no_classes_are_refused(labels: Any, text: str) -> None:
    source = ArraySource({"features": X, "labels": labels}, FACTS)
    with pytest.raises(AppError, match=text):
        train_alone(MLR(source), 1, mini_batch=50, num_data_blocks=2)
