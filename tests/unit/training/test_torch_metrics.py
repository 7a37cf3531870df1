"""Metrics of torch: the numbers of Keras on the whole, from sums over uneven and empty parts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import torch
from objectives import LABELS, NUM_CLASSES, Pair, close, labels, outputs

from hpcbal.config.schema.objective import LossConfig, MetricConfig
from hpcbal.errors import InputError, UserCodeError
from hpcbal.events.history import KERAS_METRICS
from hpcbal.training.objective import Probe
from hpcbal.training.torch.metrics import MEANS, OTHERS, arguments_of
from hpcbal.training.torch.objective import TorchObjective

Make = Callable[..., Any]
N = 83
CURVES = [
    {"curve": curve, "summation_method": method}
    for curve in ("ROC", "PR", "PRGAIN")
    for method in ("interpolation", "majoring", "minoring")
]
THRESHOLDS = [
    {},
    {"thresholds": 0.3},
    {"thresholds": [0.1, 0.4, 0.75]},
    {"thresholds": [0.0, 0.25, 0.5, 0.75, 1.0]},
]
RATES = {
    "precision_at_recall": "recall",
    "recall_at_precision": "precision",
    "sensitivity_at_specificity": "specificity",
    "specificity_at_sensitivity": "sensitivity",
}
CASES: list[tuple[str, dict[str, Any], str, str]] = [
    *[
        (name, {}, kind, form)
        for name in ("mse", "rmse", "mae", "mape", "msle", "log_cosh_error", "cosine_similarity")
        for kind, form in (("number", "any"), ("numbers", "any"), ("image", "any"))
    ],
    ("cosine_similarity", {"axis": 1}, "image", "any"),
    *[(name, {}, "numbers", "any") for name in ("pearson_correlation", "concordance_correlation")],
    ("pearson_correlation", {"axis": 1}, "series", "any"),
    ("concordance_correlation", {"axis": 1}, "series", "any"),
    *[
        ("r2_score", args, kind, "any")
        for kind in ("number", "numbers")
        for args in (
            {},
            {"class_aggregation": "variance_weighted_average"},
            {"class_aggregation": None},
            {"num_regressors": 1},
        )
    ],
    *[(name, {}, kind, "any") for name in ("hinge", "squared_hinge") for kind in ("numbers", "tags")],
    ("categorical_hinge", {}, "shares", "any"),
    ("kl_divergence", {}, "shares", "shares"),
    ("poisson", {}, "numbers", "positive"),
    *[("binary_crossentropy", args, "tags", "probabilities") for args in ({}, {"label_smoothing": 0.2})],
    *[
        ("categorical_crossentropy", args, "shares", "shares")
        for args in ({}, {"label_smoothing": 0.2}, {"axis": 1})
    ],
    *[
        ("sparse_categorical_crossentropy", args, kind, "shares")
        for kind in ("classes", "places")
        for args in ({}, {"ignore_class": 2})
    ],
    ("accuracy", {}, "tags", "probabilities"),
    ("accuracy", {"threshold": 0.3}, "tags", "probabilities"),
    ("binary_accuracy", {}, "image", "probabilities"),
    ("binary_accuracy", {"threshold": 0.3}, "tags", "probabilities"),
    ("categorical_accuracy", {}, "shares", "shares"),
    ("sparse_categorical_accuracy", {}, "classes", "shares"),
    ("sparse_categorical_accuracy", {}, "places", "shares"),
    *[("top_k_categorical_accuracy", {"k": k}, "shares", "shares") for k in (1, 2, 5)],
    *[
        ("sparse_top_k_categorical_accuracy", {"k": k}, kind, "shares")
        for k in (1, 3)
        for kind in ("classes",)
    ],
    ("sparse_top_k_categorical_accuracy", {"k": 2}, "places", "shares"),
    *[
        (name, args, "tags", "probabilities")
        for name in (
            "true_positives",
            "true_negatives",
            "false_positives",
            "false_negatives",
            "precision",
            "recall",
        )
        for args in THRESHOLDS
    ],
    *[
        (name, args, "tags", "probabilities")
        for name in ("precision", "recall")
        for args in (
            {"top_k": 2},
            {"class_id": 1},
            {"top_k": 2, "thresholds": 0.6},
            {"class_id": 2, "top_k": 3},
        )
    ],
    ("precision", {}, "number", "probabilities"),
    *[
        (name, {argument: 0.6, **args}, "tags", "probabilities")
        for name, argument in RATES.items()
        for args in ({}, {"num_thresholds": 1}, {"num_thresholds": 7}, {"class_id": 3})
    ],
    *[("auc", args, "tags", "probabilities") for args in CURVES],
    *[("auc", {**args, "multi_label": True}, "tags", "probabilities") for args in CURVES],
    ("auc", {"num_thresholds": 11}, "image", "probabilities"),
    ("auc", {"thresholds": [0.2, 0.7, 0.5]}, "tags", "probabilities"),
    ("auc", {"thresholds": [0.2, 0.7, 0.5], "multi_label": True, "num_labels": 4}, "tags", "probabilities"),
    ("auc", {"label_weights": [1.0, 2.0, 0.5, 0.0]}, "tags", "probabilities"),
    ("auc", {"label_weights": [1.0, 2.0, 0.5, 0.0], "multi_label": True}, "tags", "probabilities"),
    ("auc", {"label_weights": [1.0, 2.0, 0.5, 0.0], "thresholds": [0.2, 0.7]}, "tags", "probabilities"),
    *[
        (name, {"average": average, **args}, kind, form)
        for name in ("f1_score", "fbeta_score")
        for kind, form in (("tags", "probabilities"), ("shares", "shares"))
        for average in (None, "micro", "macro", "weighted")
        for args in ({}, {"threshold": 0.4})
    ],
    ("fbeta_score", {"beta": 0.5}, "tags", "probabilities"),
    *[
        ("binary_iou", args, "image", "probabilities")
        for args in ({}, {"target_class_ids": [1], "threshold": 0.3})
    ],
    *[
        (
            "iou",
            {"num_classes": 4, "target_class_ids": [0, 2], "sparse_y_pred": False, **args},
            "places",
            "shares",
        )
        for args in ({}, {"ignore_class": 1})
    ],
    ("iou", {"num_classes": 2, "target_class_ids": [1]}, "image", "probabilities"),
    ("mean_iou", {"num_classes": 4, "sparse_y_pred": False}, "places", "shares"),
    ("mean_iou", {"num_classes": 3, "sparse_y_pred": False, "ignore_class": 0}, "places", "shares"),
    ("one_hot_iou", {"num_classes": 5, "target_class_ids": [1, 4]}, "shares", "shares"),
    ("one_hot_mean_iou", {"num_classes": 5}, "shares", "shares"),
]


@pytest.fixture(params=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> Iterator[str]:
    before = keras.config.floatx()
    keras.config.set_floatx(request.param)
    yield request.param
    keras.config.set_floatx(before)


LOSSES = {"classes": "sparse_categorical_crossentropy", "places": "sparse_categorical_crossentropy"}


def test_every_metric_of_keras_is_tried() -> None:
    kinds = {KERAS_METRICS[name][0] for name, *_ in CASES}
    assert kinds == {kind for kind, _ in KERAS_METRICS.values()}
    assert kinds - {"Accuracy"} == {*MEANS, *OTHERS}


@pytest.mark.parametrize("kind", [*MEANS, *OTHERS])
def test_arguments_are_those_of_keras(kind: str) -> None:
    theirs = inspect.signature(getattr(keras.metrics, kind).__init__).parameters
    assert set(arguments_of(kind)) == {name for name in theirs if name not in ("self", "name", "dtype")}


@pytest.mark.parametrize(
    ("dtype", "name", "args", "kind", "form"),
    [
        *(("float64", *case) for case in CASES),
        *(("float32", *case) for case in {name: (name, *more) for name, *more in CASES}.values()),
    ],
    indirect=["dtype"],
)
def test_sums_over_uneven_parts_are_keras_on_the_whole(
    make_dnn: Make, dtype: str, name: str, args: dict[str, Any], kind: str, form: str
) -> None:
    """With a loss whose outputs are predictions. In float32, each metric has one set of arguments."""
    loss, loss_args = LOSSES.get(kind, "mse"), {}
    if loss != "mse":
        loss_args = {"from_logits": False}
    pair = Pair(make_dnn, kind, dtype, loss, loss_args, [(name, args)])
    y, given = labels(kind, N, dtype=dtype), outputs(kind, N, form, dtype)
    theirs, ours = pair.results(y, given, 1, 1, 14, 60)
    assert np.isfinite(list(ours.values())).all()
    in_float32 = dtype == "float64" and "top_k" in name  # TensorFlow's kernel has no other
    close([*ours.values()], [*theirs.values()], "float32" if in_float32 else dtype)


@pytest.mark.parametrize(
    ("loss", "kind", "names"),
    [
        (
            None,
            "classes",
            ("accuracy", "sparse_categorical_crossentropy", "sparse_top_k_categorical_accuracy"),
        ),
        (None, "shares", ("accuracy", "categorical_crossentropy", "kl_divergence", "f1_score")),
        ("sparse_categorical_crossentropy", "classes", ("accuracy", "sparse_categorical_crossentropy")),
        ("sparse_categorical_crossentropy", "places", ("accuracy", "sparse_categorical_crossentropy")),
        ("categorical_crossentropy", "shares", ("accuracy", "binary_crossentropy", "auc")),
        (
            "binary_crossentropy",
            "tags",
            ("accuracy", "binary_crossentropy", "auc", "precision", "binary_iou"),
        ),
        ("binary_focal_crossentropy", "image", ("accuracy", "binary_crossentropy", "recall")),
    ],
)
def test_metrics_of_logits_are_those_of_keras(
    make_dnn: Make, dtype: str, loss: str | None, kind: str, names: tuple[str, ...]
) -> None:
    """Of large logits too, whose probabilities are 0 and 1: cross entropies of Keras look at the logits."""
    pair = Pair(make_dnn, kind, dtype, loss, {}, [(name, {}) for name in names])
    y, given = labels(kind, N, dtype=dtype), outputs(kind, N, "any", dtype)
    given[:9] *= 60
    theirs, ours = pair.results(y, given, 5, 41)
    assert [*ours] == [*names]
    close([*ours.values()], [*theirs.values()], dtype)


@pytest.mark.parametrize("kind", ["classes", "shares"])
def test_the_default_metric_is_accuracy(make_dnn: Make, dtype: str, kind: str) -> None:
    pair = Pair(make_dnn, kind, dtype)
    theirs, ours = pair.results(labels(kind, N, dtype=dtype), outputs(kind, N, "any", dtype), 5, 41)
    assert list(ours) == ["accuracy"]
    assert ours == theirs


def test_ties_and_thresholds_count_as_in_keras(make_dnn: Make, dtype: str) -> None:
    """Predictions that are equal to each other, or to a threshold."""
    y = labels("tags", N, dtype=dtype)
    given = (np.random.default_rng(2).integers(0, 5, (N, 4)) / 4).astype(dtype)
    for name, args in (
        ("precision", {"top_k": 2}),
        ("true_positives", {"thresholds": [0.0, 0.25, 0.5, 0.75, 1.0]}),
        ("false_positives", {"thresholds": [0.25, 0.5]}),
        ("auc", {"num_thresholds": 5}),
        ("f1_score", {}),
        ("binary_iou", {}),
        ("binary_accuracy", {"threshold": 0.25}),
    ):
        theirs, ours = Pair(make_dnn, "tags", dtype, "mse", {}, [(name, args)]).results(y, given, 30)
        close([*ours.values()], [*theirs.values()], dtype)
    y, given = labels("classes", N), np.round(outputs("classes", N, "any", dtype))
    theirs, ours = Pair(
        make_dnn,
        "classes",
        dtype,
        metrics=[("accuracy", {}), ("sparse_top_k_categorical_accuracy", {"k": 2})],
    ).results(y, given, 30)
    close([*ours.values()], [*theirs.values()], "float32")  # top-k metrics of TensorFlow have no other


def test_predictions_that_are_not_numbers_are_not_counted_as_yes(make_dnn: Make) -> None:
    pair = Pair(make_dnn, "tags", "float32", "mse", {}, [("auc", {}), ("precision", {})])
    y, given = torch.ones(6, 4), torch.full((6, 4), float("nan"))
    pair.torch.try_on(Probe(y[:3], torch.rand(3, 4)))
    auc_above, *_ = pair.torch.states(y, given)
    assert auc_above.sum() == 0


@pytest.mark.parametrize(
    ("kind", "name", "args", "message"),
    [
        ("number", "mse", {"x": 1}, "unexpected keyword argument 'x'; arguments allowed: none"),
        ("number", "auc", {"x": 1}, "arguments allowed: num_thresholds, curve, summation_method, thresholds"),
        ("tags", "auc", {"curve": "ROCK"}, "got curve 'ROCK', allowed: roc, pr, prgain"),
        ("tags", "auc", {"num_thresholds": 1}, "got num_thresholds 1, allowed: 2 or more"),
        ("tags", "auc", {"num_labels": 4}, "got num_labels, allowed: only with multi_label"),
        (
            "tags",
            "precision",
            {"thresholds": [0.5, 2]},
            r"got thresholds \[0.5, 2\], allowed: numbers of 0 to 1",
        ),
        ("tags", "precision_at_recall", {}, "arguments allowed: recall, num_thresholds, class_id"),
        ("tags", "precision_at_recall", {"recall": 2}, "got recall 2, allowed: 0 to 1"),
        (
            "tags",
            "f1_score",
            {"average": "all"},
            "got average 'all', allowed: null, micro, macro or weighted",
        ),
        ("tags", "f1_score", {"threshold": 0}, "got threshold 0, allowed: null, or 0.0 < threshold"),
        ("tags", "fbeta_score", {"beta": -1.0}, "got beta -1.0, allowed: a number above 0"),
        (
            "places",
            "iou",
            {"num_classes": 2, "target_class_ids": [2]},
            r"got target_class_ids \[2\], allowed: 0 to 1",
        ),
        ("places", "mean_iou", {"num_classes": 2, "axis": 1}, "got axis 1, allowed: -1"),
        (
            "number",
            "r2_score",
            {"class_aggregation": "sum"},
            "got class_aggregation 'sum', allowed: null, unif",
        ),
        ("number", "r2_score", {"num_regressors": -1}, "got num_regressors -1, allowed: 0 or more"),
        ("tags", "binary_crossentropy", {"from_logits": True}, "got from_logits, allowed: leave it out"),
    ],
)
def test_wrong_arguments_are_refused(
    make_dnn: Make, kind: str, name: str, args: dict[str, Any], message: str
) -> None:

    dnn = make_dnn(loss=LossConfig(name="mse"), metrics=(MetricConfig(name=name, args=args),))
    with pytest.raises(InputError, match=f"^DNN dnn: metric {name}: .*{message}"):
        TorchObjective(dnn, LABELS[kind], NUM_CLASSES.get(kind, 0), None, torch.float32)


@pytest.mark.parametrize(
    ("kind", "loss", "name", "args", "message"),
    [
        ("image", "mse", "r2_score", {}, r"shape \(4, 3\) for each sample, allowed: \(columns,\)"),
        ("image", "mse", "auc", {"multi_label": True}, "allowed with multi_label: a number for each label"),
        ("tags", "mse", "auc", {"multi_label": True, "num_labels": 3}, "got num_labels 3, allowed: 4"),
        ("tags", "mse", "auc", {"label_weights": [1.0, 2.0]}, "metric auc failed"),
        (
            "classes",
            None,
            "mse",
            {},
            r"labels have shape \(\) for each sample and predictions \(5,\), allowed: the",
        ),
        ("classes", None, "precision", {}, r"labels have shape \(\) for each sample and predictions \(5,\)"),
        ("places", "sparse_categorical_crossentropy", "mean_iou", {"num_classes": 4}, "sparse_y_pred"),
        (
            "tags",
            "mse",
            "sparse_categorical_accuracy",
            {},
            "allowed: predictions with one more axis than numbers",
        ),
    ],
)
def test_what_a_metric_does_not_fit_is_refused_before_training(
    make_dnn: Make, kind: str, loss: str | None, name: str, args: dict[str, Any], message: str
) -> None:
    pair = Pair(make_dnn, kind, "float32", loss, {}, [(name, args)])
    y, given = labels(kind, 3), outputs(kind, 3, "any", "float32")
    with pytest.raises(UserCodeError, match=message):
        pair.torch.try_on(Probe(y, given))


def test_a_metric_over_the_samples_of_a_batch_does_not_add_up(make_dnn: Make) -> None:
    pair = Pair(make_dnn, "numbers", "float32", "mse", {}, [("cosine_similarity", {"axis": 0})])
    with pytest.raises(
        InputError, match="its states after all samples are not the sum of its states after parts"
    ):
        pair.torch.try_on(Probe(labels("numbers", 3), outputs("numbers", 3, "any", "float32")))
