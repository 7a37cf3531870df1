"""Users' Keras models: what can be trained is trained, all else is refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcbal.errors import InputError, UserCodeError
from hpcbal.training.backend import LocalCollective
from hpcbal.training.groups import GroupFailed
from hpcbal.training.keras.tensorflow_backend import TensorFlowBackend
from hpcbal.training.step import evaluate_step, train_step

Make = Callable[..., Any]


@pytest.fixture
def build(make_dnn: Make, make_spec: Make, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "programs"))

    def make(name: str, **args: Any) -> Any:
        dnn = make_dnn(model=f"user_models:{name}", **args)
        return TensorFlowBackend(precision="float32").build(dnn, make_spec(dtype="float32"), 5, 0)

    return make


LEARNING = ("plain", "unbuilt", "log_softmax", "shares_as_bias", "compiled", "with_block")
LEARNING += ("Subclassed", "WithoutTraining", "Embeds")


@pytest.mark.parametrize("name", LEARNING)
def test_models_of_all_kinds_learn(build: Make, make_batch: Make, name: str) -> None:
    replica, batch = build(name, learning_rate=0.05), make_batch(16, dtype="float32")
    batch.x[:] = batch.x > 0
    losses = [train_step(replica, batch, 16, LocalCollective()).sums.mean_loss for _ in range(30)]
    assert losses[-1] < losses[0]
    assert evaluate_step(replica, batch, LocalCollective()).sums.count == 16


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("softmax_dense", "ends in softmax, allowed: logits"),
        ("sigmoid_dense", "ends in sigmoid, allowed: logits"),
        ("softmax_layer", "ends in softmax, allowed: logits"),
        ("softmax_function", "ends in softmax, allowed: logits"),
        ("softmax_inside", "ends in softmax, allowed: logits"),
        ("softmax_lambda", "returns probabilities (the outputs of a sample sum to one), allowed: logits"),
        ("SubclassedSoftmax", "returns probabilities (the outputs of a sample sum to one), allowed: logits"),
        ("without_return", "returned NoneType (does the function lack a return?), allowed: keras.Model"),
        ("dictionary", "returns a dict, allowed: one tensor, the logits of 5 classes"),
        ("TwoOutputs", "returns a list, allowed: one tensor, the logits of 5 classes"),
        ("two_inputs", "takes 2 inputs, allowed: 1, the samples"),
        ("other_input", "takes samples of shape (28, 28, 1), allowed: (6, 6, 1)"),
        ("half_precision", "gives outputs of type float16, allowed: float32; give its last layer dtype="),
        ("LayersInCall", "has no weights to train, allowed: at least one; make layers in __init__"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused(build: Make, name: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        build(name)
    assert str(caught.value).startswith(f"DNN dnn: model user_models:{name} {message}")


def test_a_softmax_is_refused_with_the_remedy(build: Make) -> None:
    with pytest.raises(InputError, match=r"remove the activation of the last layer: Dense\(num_classes\)"):
        build("softmax_dense")


def test_an_error_in_a_call_shows_the_whole_message_and_the_users_line(build: Make) -> None:
    with pytest.raises(UserCodeError) as caught:
        build("Raises")
    text = str(caught.value)
    assert text.startswith(
        "DNN dnn: model user_models:Raises: calling it on 3 samples of shape (6, 6, 1) failed: "
    )
    assert "user_models.py:1" in text
    assert text.endswith(": RuntimeError: cannot use these values: [1. 1. 1. 0.] the end")


@pytest.mark.parametrize(("name", "kind"), [("exits", "SystemExit: no licence"), ("gone", "has no 'gone'")])
def test_a_callable_that_exits_or_does_not_exist_fails_its_dnn_only(
    build: Make, name: str, kind: str
) -> None:
    with pytest.raises(InputError, match=kind):
        build(name)


def test_a_callable_with_another_signature_is_refused_before_it_is_called(
    make_dnn: Make, make_spec: Make
) -> None:
    with pytest.raises(InputError, match=r"ResNet50 is ResNet50\(include_top=True, .* name a function"):
        TensorFlowBackend().build(make_dnn(model="keras.applications:ResNet50"), make_spec(), 5, 0)


def test_an_error_in_a_traced_call_shows_the_users_line_and_not_its_wrapping(
    build: Make, make_batch: Make
) -> None:
    replica = build("RaisesInGraph")
    with pytest.raises(GroupFailed) as caught:
        train_step(replica, make_batch(4, dtype="float32"), 4, LocalCollective())
    first, _, rest = caught.value.detail.partition("\n")
    assert "user_models.py:1" in first
    assert first.endswith("AttributeError: 'SymbolicTensor' object has no attribute 'numpy'")
    assert rest.startswith("Traceback")


@pytest.mark.parametrize("name", ["Subclassed", "WithoutTraining", "with_block"])
def test_dropout_is_on_in_training_and_off_in_evaluation_also_where_call_takes_no_training(
    build: Make, make_batch: Make, name: str
) -> None:
    replica, batch = build(name), make_batch(8, dtype="float32")
    other = type(batch)(batch.ids + 100, batch.x, batch.y)  # the draws depend on the first id
    assert replica.evaluate(batch) == replica.evaluate(other)
    assert replica.compute(batch, 8).sums != replica.compute(other, 8).sums


def test_batch_normalisation_inside_a_users_layer_trains(build: Make, make_batch: Make) -> None:
    replica, batch = build("with_block"), make_batch(8, dtype="float32")
    before = replica.state()
    train_step(replica, batch, 8, LocalCollective())
    after = replica.state()
    moved = [name for name in before if "moving" in name and not np.array_equal(before[name], after[name])]
    assert len(moved) == 2


def test_the_same_weights_have_the_same_names_with_and_without_training(build: Make) -> None:
    one, other = (
        [key.split("/", 2)[2] for key in build(name).state() if key.startswith("weights/")]
        for name in ("Subclassed", "WithoutTraining")
    )
    assert one == other != []


def test_checks_change_no_initial_weight(build: Make) -> None:
    one, other = build("Subclassed").state(), build("Subclassed").state()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


@pytest.mark.parametrize(
    ("name", "warning"),
    [
        ("compiled", "its compiled loss, optimizer and metrics are not used"),
        ("OwnTrainStep", "its train_step is not used"),
        ("relu_dense", "it ends in relu, but the loss takes logits"),
        ("tanh_activation", "it ends in tanh, but"),
        ("leaky_layer", "it ends in leaky_relu, but"),
        ("relu_function", "it ends in relu, but"),
    ],
)
def test_what_may_be_a_mistake_is_reported(build: Make, name: str, warning: str) -> None:
    (given,) = build(name).warnings
    assert warning in given


@pytest.mark.parametrize("name", ["plain", "log_softmax", "shares_as_bias", "with_block", "Subclassed"])
def test_a_model_that_returns_logits_causes_no_warning(build: Make, name: str) -> None:
    assert not build(name).warnings
