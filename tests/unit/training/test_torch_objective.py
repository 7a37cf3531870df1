"""The objective of a torch module: own losses and metrics, and what cannot be summed over samples."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from objectives import LABELS, NUM_CLASSES, labels, outputs, states_of
from torch.nn import functional

from hpcbal.config.schema.objective import LossConfig, MetricConfig
from hpcbal.errors import HpcbalError, InputError, UserCodeError
from hpcbal.training.backend import Sums
from hpcbal.training.objective import Probe
from hpcbal.training.torch.objective import TorchObjective

Make = Callable[..., Any]


@pytest.fixture(autouse=True)
def _own_objectives_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "programs"))


@pytest.fixture
def make(make_dnn: Make) -> Make:
    """An objective in float64 that was tried on three samples."""

    def make(
        kind: str, loss: Any = None, metrics: tuple[Any, ...] | None = None, **given: Any
    ) -> TorchObjective:
        if isinstance(loss, str):
            loss = LossConfig(name=loss)
        made = metrics and tuple(MetricConfig(name=m) if isinstance(m, str) else m for m in metrics)
        dnn = make_dnn(loss=loss, metrics=made, **given)
        objective = TorchObjective(dnn, LABELS[kind], NUM_CLASSES.get(kind, 0), None, torch.float64)
        objective.try_on(Probe(labels(kind, 3), outputs(kind, 3, "any", "float32")))
        return objective

    return make


def losses_of(objective: TorchObjective, kind: str, n: int = 9) -> tuple[torch.Tensor, ...]:
    y, given = torch.tensor(labels(kind, n)), torch.tensor(outputs(kind, n, "any", "float64"))
    return y, given, objective.losses(y, outputs=given, training=True)


def test_own_functions_take_labels_and_outputs(make: Make) -> None:
    objective = make(
        "number",
        LossConfig(name="torch_objectives:quantile", args={"share": 0.9}),
        ("torch_objectives:within_one",),
    )
    y, given, found = losses_of(objective, "number")
    difference = y[:, None] - given
    expected = torch.maximum(0.9 * difference, -0.1 * difference)[:, 0]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    states = sum(states_of(objective, y[part], given[part]) for part in (slice(0, 2), slice(2, 9)))
    assert objective.metric_names == ("within_one",)
    results = objective.results(Sums(float(found.sum()), 9, states))
    assert results == {
        "loss": pytest.approx(float(expected.mean())),
        "within_one": pytest.approx(float((difference.abs() <= 1).double().mean())),
    }


def test_numbers_of_classes_are_int64_and_outputs_of_the_given_type(make: Make) -> None:
    """Labels are stored as bytes, and outputs under autocast have 16 bits."""
    objective = make("classes", "torch_objectives:of_classes", ("accuracy",))
    y, given = labels("classes", 9).astype("uint8"), outputs("classes", 9, "any", "float32")
    found = objective.losses(torch.tensor(y), outputs=torch.tensor(given).bfloat16(), training=True)
    assert found.dtype == torch.float64
    (hits,) = objective.states(torch.tensor(y), torch.tensor(given))
    assert int(hits) == int((given.argmax(-1) == y).sum())


@pytest.mark.parametrize(
    ("kind", "name", "args", "expected"),
    [
        ("number", "torch.nn:HuberLoss", {"delta": 0.5}, "huber_loss"),
        ("number", "torch.nn.functional:huber_loss", {"delta": 0.5}, "huber_loss"),
        ("numbers", "torch.nn:SmoothL1Loss", {}, "smooth_l1_loss"),
        ("tags", "torch.nn:BCEWithLogitsLoss", {}, "binary_cross_entropy_with_logits"),
        ("classes", "torch.nn:CrossEntropyLoss", {"label_smoothing": 0.1}, "cross_entropy"),
        ("classes", "torch.nn.functional:multi_margin_loss", {}, "multi_margin_loss"),
        ("shares", "torch.nn.functional:cross_entropy", {}, "cross_entropy"),
        ("tags", "torch_objectives:of_logits", {}, "binary_cross_entropy_with_logits"),
    ],
)
def test_losses_of_torch_are_called_as_torch_does(
    make: Make, kind: str, name: str, args: dict[str, Any], expected: str
) -> None:
    y, given, found = losses_of(make(kind, LossConfig(name=name, args=args)), kind)
    y = y.reshape(-1, 1) if kind == "number" else y
    y = y if kind == "classes" else y.double()
    alone = getattr(functional, expected)(given, y, reduction="none", **args)
    torch.testing.assert_close(found, alone.reshape(9, -1).mean(1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["torch.nn:CrossEntropyLoss", "torch.nn.functional:cross_entropy"])
def test_weights_in_the_arguments_of_torchs_losses_are_lists(make: Make, name: str) -> None:
    weights = np.linspace(0.5, 2.0, NUM_CLASSES["classes"]).tolist()
    y, given, found = losses_of(make("classes", LossConfig(name=name, args={"weight": weights})), "classes")
    plain = functional.cross_entropy(given, y, reduction="none")
    torch.testing.assert_close(found, plain * torch.tensor(weights, dtype=torch.float64)[y])
    with pytest.raises(InputError, match=r"weight: got \['a'\], allowed: a list of numbers"):
        make("classes", LossConfig(name=name, args={"weight": ["a"]}))


def test_labels_that_a_loss_changes_in_some_steps_only(make: Make) -> None:
    objective = make("classes", "torch_objectives:clamping_many")
    with pytest.raises(InputError, match="the loss or a metric changes labels in place, allowed: leave them"):
        losses_of(objective, "classes")


def test_a_loss_with_weights_of_its_own_is_refused(make: Make) -> None:
    with pytest.raises(InputError, match=r"Learning: it has weights of its own, which would not train"):
        make("number", "torch_objectives:Learning")


def test_a_loss_derived_from_one_of_torch_takes_the_same_labels(make: Make) -> None:
    for name in ("torch_objectives:Smoothed", "torch_objectives:smoothed"):
        y, given, found = losses_of(make("classes", name), "classes")
        alone = functional.cross_entropy(given, y.long(), reduction="none", label_smoothing=0.1)
        torch.testing.assert_close(found, alone, rtol=1e-12, atol=1e-12)


def test_a_metric_of_torch_is_called_as_torch_does(make: Make) -> None:
    objective = make(
        "number", "mse", (MetricConfig(name="torch.nn.functional:huber_loss", args={"delta": 0.5}),)
    )
    y, given, _ = losses_of(objective, "number")
    found = objective.results(Sums(0.0, 9, states_of(objective, y, given)))
    expected = float(functional.huber_loss(given, y[:, None].double(), delta=0.5))
    assert found["huber_loss"] == pytest.approx(expected, rel=1e-12)


def test_classes_of_ones_own_are_losses(make: Make) -> None:
    y, given, found = losses_of(
        make("number", LossConfig(name="torch_objectives:Scaled", args={"scale": 3.0})), "number"
    )
    torch.testing.assert_close(found, 3.0 * (y[:, None] - given).abs()[:, 0], rtol=1e-12, atol=0)
    y, given, found = losses_of(make("number", "torch_objectives:Fourth"), "number")
    torch.testing.assert_close(found, (y[:, None] - given)[:, 0] ** 4, rtol=1e-12, atol=0)
    assert losses_of(make("number", "torch_objectives:unnamed"), "number")[2].shape == (9,)


def test_classes_may_be_the_axis_after_samples_as_losses_of_torch_take_them(make_dnn: Make) -> None:
    dnn = make_dnn(
        loss=LossConfig(name="torch.nn:CrossEntropyLoss"), metrics=(MetricConfig(name="accuracy"),)
    )
    objective = TorchObjective(dnn, LABELS["places"], 4, None, torch.float64)
    y, given = labels("places", 9), np.moveaxis(outputs("places", 9, "any", "float64"), -1, 1).copy()
    objective.try_on(Probe(y[:3], given[:3]))
    results = objective.results(Sums(0.0, 9, states_of(objective, torch.tensor(y), torch.tensor(given))))
    assert results["accuracy"] == pytest.approx((given.argmax(1) == y).mean(), rel=1e-12)
    losses = objective.losses(torch.tensor(y), outputs=torch.tensor(given), training=True)
    expected = functional.cross_entropy(torch.tensor(given), torch.tensor(y).long(), reduction="none")
    torch.testing.assert_close(losses, expected.mean((1, 2)), rtol=1e-12, atol=0)


@pytest.mark.parametrize("loss", ["torch_objectives:of_classes", "torch.nn:CrossEntropyLoss"])
def test_accuracy_compares_classes_whatever_the_loss(make: Make, loss: str) -> None:
    objective = make("classes", loss, ("accuracy",))
    y, given, _ = losses_of(objective, "classes")
    results = objective.results(Sums(0.0, 9, states_of(objective, y, given)))
    assert results["accuracy"] == pytest.approx(float((given.argmax(-1) == y).double().mean()))


def test_accuracy_of_one_output_takes_it_for_the_probability_of_class_1(make_dnn: Make) -> None:
    dnn = make_dnn(loss=LossConfig(name="torch.nn:BCELoss"), metrics=(MetricConfig(name="accuracy"),))
    objective = TorchObjective(dnn, LABELS["classes"], 2, "sigmoid", torch.float64)
    y, given = np.array([0, 1, 1, 0]), np.array([[0.2], [0.8], [0.4], [0.5]])
    objective.try_on(Probe(y[:3], given[:3]))
    (hits,) = objective.states(torch.tensor(y), torch.tensor(given))
    assert float(hits) == 3.0


@pytest.mark.parametrize("kind", ["classes", "tags", "number"])
def test_outputs_of_predictions_lead_back_to_them(make: Make, kind: str) -> None:
    objective = make(kind, {"classes": None, "tags": "binary_crossentropy", "number": "mse"}[kind])
    given = torch.tensor(outputs(kind, 9, "any", "float64"))
    predictions = objective.predictions(given)
    torch.testing.assert_close(
        objective.predictions(objective.outputs_of(predictions)), predictions, rtol=1e-9, atol=1e-12
    )


def test_nothing_is_nan_without_samples(make: Make) -> None:
    results = make("tags", "binary_crossentropy", ("auc", "f1_score")).results(Sums())
    assert np.isnan(list(results.values())).all()


@pytest.mark.parametrize(
    ("kind", "loss", "metrics", "error", "message"),
    [
        (
            "number",
            None,
            None,
            InputError,
            r"loss: labels have shape \(\) and type float32, which the default",
        ),
        (
            "number",
            "torch_objectives:mean_of_batch",
            None,
            InputError,
            "it returns one number for a batch, allowed",
        ),
        (
            "number",
            "torch_objectives:ranked",
            None,
            InputError,
            "the loss of a sample depends on the other samples",
        ),
        (
            "number",
            "torch_objectives:of_columns",
            None,
            InputError,
            "the loss of a sample depends on the other",
        ),
        (
            "number",
            "torch_objectives:raising",
            None,
            UserCodeError,
            "torch_objectives.py:.*ValueError: no such label",
        ),
        ("number", "torch_objectives:nothing", None, UserCodeError, "returned NoneType, allowed: a tensor"),
        (
            "number",
            "torch_objectives:Uncalled",
            None,
            InputError,
            "it makes a Uncalled, allowed: a function of lab",
        ),
        (
            "number",
            "torch_objectives:as_torch",
            None,
            InputError,
            r"its arguments are called pred and target, but hpcbal passes \(labels, outputs\) in this order, "
            r"allowed: a function of labels first and outputs second, such as def loss\(target, pred\)",
        ),
        ("number", "torch_objectives:Turned", None, InputError, "its arguments are called input and target"),
        ("number", "torch_objectives:turned", None, InputError, "its arguments are called input and target"),
        ("tags", "torch_objectives:mean_of_logits", None, InputError, "it returns one number for a batch"),
        (
            "number",
            "torch_objectives:detached",
            None,
            InputError,
            r"loss torch_objectives:detached: it returns losses without a gradient, .* remove detach",
        ),
        ("number", "torch_objectives:by_numpy", None, UserCodeError, "numpy.. on .*requires grad"),
        ("number", "mse", ("torch_objectives:as_torch",), InputError, r"such as def metric\(target, pred\)"),
        (
            "number",
            "mse",
            ("torch_objectives:Counting",),
            InputError,
            "keep no state .update, compute.; hpcbal sums",
        ),
        (
            "number",
            "mse",
            ("torch_objectives:mean_of_batch",),
            UserCodeError,
            "it returns one number for a batch",
        ),
        (
            "number",
            "mse",
            ("torch_objectives:ranked",),
            InputError,
            "its states after all samples are not the sum",
        ),
        (
            "number",
            "mse",
            ("torch_objectives:nothing",),
            UserCodeError,
            "it returns NoneType, allowed: a tensor",
        ),
        ("number", LossConfig(name="huber", args={"dleta": 1}), None, InputError, "arguments allowed: delta"),
        ("number", LossConfig(name="torch.nn:HuberLoss", args={"dleta": 1}), None, UserCodeError, "dleta"),
        (
            "number",
            "torch.nn:TripletMarginLoss",
            None,
            UserCodeError,
            "missing 1 required positional argument",
        ),
        (
            "classes",
            "mse",
            None,
            InputError,
            "labels are numbers of classes, and the model returns 5 numbers",
        ),
        ("classes", "binary_crossentropy", None, InputError, "labels are numbers of classes, and the model"),
    ],
)
def test_what_cannot_be_used_is_refused_before_training(
    make: Make, kind: str, loss: Any, metrics: Any, error: type[HpcbalError], message: str
) -> None:
    with pytest.raises(error, match=f"^DNN dnn: .*{message}"):
        make(kind, loss, metrics)


def test_smoothing_and_weights_of_classes_are_refused_as_for_keras(make: Make) -> None:
    with pytest.raises(InputError, match=r"label_smoothing: got 0\.1 with loss mse, allowed: 0"):
        make("tags", "mse", label_smoothing=0.1)
    with pytest.raises(InputError, match=r"label_smoothing: got 0\.1 with loss torch.nn:CrossEntropyLoss"):
        make("classes", "torch.nn:CrossEntropyLoss", label_smoothing=0.1)
    with pytest.raises(InputError, match="class_weights: got class 5, allowed: 0 to 4"):
        make("classes", class_weights={5: 1.0})


def test_torch_needs_no_keras() -> None:
    program = "import sys, hpcbal.training.torch.objective as _; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=100, check=True)
    assert not {"keras", "tensorflow", "mpi4py"} & set(done.stdout.decode().split())
