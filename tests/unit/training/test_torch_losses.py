"""Losses of torch: the numbers and gradients of Keras, for every name and argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import torch
from objectives import Pair, close, labels, outputs

from hpcbal.config.schema.objective import KERAS_LOSSES
from hpcbal.training.torch.losses import LOSSES

Make = Callable[..., Any]
NAMES = {kind: name for name, kind in reversed(KERAS_LOSSES.items())}
REGRESSION = ("number", "numbers", "image")
CASES: list[tuple[str, dict[str, Any], str, str]] = [
    *[
        (name, {}, kind, "positive" if name == "poisson" else "any")
        for name in ("mse", "mae", "mape", "msle", "huber", "log_cosh", "poisson", "cosine_similarity")
        for kind in REGRESSION
    ],
    ("huber", {"delta": 0.3}, "numbers", "any"),
    ("cosine_similarity", {"axis": 1}, "image", "any"),
    ("cosine_similarity", {"axis": [1, 2]}, "image", "any"),
    *[
        (name, {}, kind, "any")
        for name in ("hinge", "squared_hinge")
        for kind in ("number", "numbers", "tags")
    ],
    ("categorical_hinge", {}, "shares", "any"),
    ("categorical_hinge", {}, "image", "any"),
    ("kl_divergence", {}, "shares", "shares"),
    ("kl_divergence", {}, "tags", "probabilities"),
    *[
        ("sparse_categorical_crossentropy", args, kind, "any" if args.get("from_logits", True) else "shares")
        for kind in ("classes", "places")
        for args in (
            {},
            {"from_logits": False},
            {"ignore_class": 2},
            {"ignore_class": 0, "from_logits": False},
        )
    ],
    *[
        (name, args, kind, "any" if args.get("from_logits", True) else "shares")
        for name in ("categorical_crossentropy", "categorical_focal_crossentropy")
        for kind in ("shares",)
        for args in ({}, {"from_logits": False}, {"label_smoothing": 0.2}, {"axis": 1})
    ],
    ("categorical_focal_crossentropy", {"alpha": 0.7, "gamma": 1.5}, "shares", "any"),
    *[
        (name, args, kind, "any" if args.get("from_logits", True) else "probabilities")
        for name in ("binary_crossentropy", "binary_focal_crossentropy")
        for kind in ("tags", "image")
        for args in ({}, {"from_logits": False}, {"label_smoothing": 0.2}, {"axis": [1]})
    ],
    ("binary_focal_crossentropy", {"apply_class_balancing": True, "alpha": 0.7, "gamma": 1.5}, "tags", "any"),
    *[
        (name, args, kind, "probabilities")
        for name in ("dice", "tversky")
        for kind in ("tags", "image")
        for args in ({}, {"axis": [1]})
    ],
    ("tversky", {"alpha": 0.2, "beta": 0.9}, "image", "probabilities"),
]


@pytest.fixture(params=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> Iterator[str]:
    before = keras.config.floatx()
    keras.config.set_floatx(request.param)
    yield request.param
    keras.config.set_floatx(before)


def test_every_loss_of_keras_is_tried() -> None:
    assert {KERAS_LOSSES[name] for name, *_ in CASES} == set(KERAS_LOSSES.values()) == set(LOSSES)


@pytest.mark.parametrize("kind", LOSSES)
def test_arguments_and_defaults_are_those_of_keras(kind: str) -> None:
    theirs = dict(inspect.signature(getattr(keras.losses, kind).__init__).parameters)
    ours = list(inspect.signature(LOSSES[kind]).parameters.values())[2:]
    expected = {name for name in theirs if name not in ("self", "name", "dtype", "reduction")}
    assert {each.name for each in ours} == expected
    assert {each.name: each.default for each in ours} == {name: theirs[name].default for name in expected}


@pytest.mark.parametrize(("name", "args", "kind", "form"), CASES)
def test_losses_and_gradients_are_those_of_keras(
    make_dnn: Make, dtype: str, name: str, args: dict[str, Any], kind: str, form: str
) -> None:
    pair = Pair(make_dnn, kind, dtype, name, args)
    y, given = labels(kind, 13, dtype=dtype), outputs(kind, 13, form, dtype)
    theirs, ours, their_gradient, our_gradient = pair.losses(y, given)
    assert np.isfinite(theirs).all()
    assert np.isfinite(their_gradient).all()
    close(ours, theirs, dtype)
    close(our_gradient, their_gradient, dtype)


@pytest.mark.parametrize("kind", ["classes", "shares"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weights", [None, {0: 3.0, 2: 0.5, 4: 0.0}])
def test_the_default_loss_is_that_of_keras_with_weights_of_classes_and_samples(
    make_dnn: Make, dtype: str, kind: str, smoothing: float, weights: dict[int, float] | None
) -> None:
    pair = Pair(make_dnn, kind, dtype, label_smoothing=smoothing, class_weights=weights)
    y, given = labels(kind, 13, dtype=dtype), outputs(kind, 13, "any", dtype)
    by_sample = np.random.default_rng(5).uniform(0, 2, 13).astype("float32")
    theirs, ours, their_gradient, our_gradient = pair.losses(y, given, by_sample)
    close(ours, theirs, dtype)
    close(our_gradient, their_gradient, dtype)


@pytest.mark.parametrize("ending", ["softmax", "sigmoid", "linear", None])
@pytest.mark.parametrize(
    ("name", "kind"),
    [("categorical_crossentropy", "shares"), ("binary_crossentropy", "tags"), ("mse", "tags")],
)
def test_the_link_is_that_of_keras(make_dnn: Make, name: str, kind: str, ending: str | None) -> None:
    pair = Pair(make_dnn, kind, keras.config.floatx(), name, ending=ending)
    assert pair.torch.link == pair.keras.link


def test_large_outputs_have_finite_losses_and_gradients(make_dnn: Make, dtype: str) -> None:
    for name, kind in (
        ("sparse_categorical_crossentropy", "classes"),
        ("binary_crossentropy", "tags"),
        ("log_cosh", "numbers"),
    ):
        pair = Pair(make_dnn, kind, dtype, name)
        given = outputs(kind, 13, "any", dtype) * 300
        theirs, ours, their_gradient, our_gradient = pair.losses(labels(kind, 13, dtype=dtype), given)
        assert np.isfinite(ours).all()
        close(ours, theirs, dtype)
        close(our_gradient, their_gradient, dtype)


@pytest.mark.parametrize(("name", "kind"), [("mse", "number"), ("binary_crossentropy", "number")])
def test_outputs_without_an_axis_count_like_those_with_one(
    make_dnn: Make, dtype: str, name: str, kind: str
) -> None:
    """A module may squeeze its only output away."""
    pair = Pair(make_dnn, kind, dtype, name)
    y, given = labels(kind, 7, dtype=dtype), outputs(kind, 7, "any", dtype)
    with_axis = pair.losses(y, given)[1]
    flat = pair.torch.losses(torch.tensor(y), outputs=torch.tensor(given[:, 0]), training=True)
    close(flat.numpy(), with_axis, dtype)


@pytest.mark.parametrize("name", ["mse", "sparse_categorical_crossentropy", "hinge", "dice", "log_cosh"])
def test_no_samples_have_no_losses(make_dnn: Make, name: str) -> None:
    kind = "classes" if "sparse" in name else "tags"
    pair = Pair(make_dnn, kind, "float32", name)
    assert pair.losses(labels(kind, 3)[:0], outputs(kind, 3, "any", "float32")[:0])[1].shape == (0,)
