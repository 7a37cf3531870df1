"""Modules that cannot be trained are refused before training, in one sentence that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hpcbal.config.schema.objective import LossConfig
from hpcbal.errors import InputError, UserCodeError
from hpcbal.training.torch.backend import TorchBackend

Make = Callable[..., Any]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("a_class", r"returned the class Linear, allowed: an object, Linear\(\.\.\.\)"),
        ("nothing", r"returned NoneType \(does the function lack a return\?\), allowed: a torch\.nn\.Module"),
        ("wrapped", r"returned a DataParallel, allowed: the module in it"),
        ("wrapped_within", r"has in 1 a DataParallel, allowed: the module in it"),
        (
            "never_called",
            r"head\.weight belongs to a lazy module that no call has reached, so",
        ),
        ("without_weights", r"no weights to train, allowed: at least one parameter"),
        ("too_wide", r"outputs of shape \(3, 6\) for 3 samples, allowed: \(3, 5\), the logits of 5 classes"),
        ("elsewhere", r"aside\.weight is on the device meta, allowed: leave the module on the CPU"),
        ("with_buffer_elsewhere", r"seen is on the device meta, allowed: leave the module on the CPU"),
        ("in_halves", r"aside\.weight has the type float16, allowed: float32"),
        ("in_place", r"changes its samples in place, allowed: leave them"),
        ("of_dict", r"returns a dict, allowed: one tensor, the logits of 5 classes"),
        ("of_nan", r"returns NaN or infinity for samples of zeros and ones"),
        ("softmax", r"ends in softmax, allowed: logits"),
        ("of_complex", r"returns complex numbers, allowed: real ones"),
        (
            "listed",
            r"depend on hidden\[0\]\.weight, which is no parameter of the module and would neither",
        ),
        (
            "with_weight_in_object",
            r"depend on a torch\.nn\.Parameter of shape \(7,\) outside of it, which is no",
        ),
    ],
)
def test_a_module_that_cannot_be_trained(make_dnn: Make, make_spec: Make, model: str, words: str) -> None:
    with pytest.raises(InputError, match=f"DNN dnn: model torch_modules:{model}.*{words}") as caught:
        TorchBackend().build(make_dnn(model=f"torch_modules:{model}"), make_spec(dtype="float32"), 5, 0)
    assert "\n" not in str(caught.value)


def test_gradients_by_samples_and_hidden_teachers_are_no_weights(make_dnn: Make, make_spec: Make) -> None:
    dnn = make_dnn(model="torch_modules:penalised", loss=LossConfig(name="module"))
    TorchBackend().build(dnn, make_spec(dtype="float32"), 5, 0)


def test_an_error_of_the_module_names_its_line(make_dnn: Make, make_spec: Make) -> None:
    with pytest.raises(
        UserCodeError, match=r"calling it on 3 samples .* failed: .*torch_modules\.py:\d+: KeyError"
    ):
        TorchBackend().build(make_dnn(model="torch_modules:failing"), make_spec(dtype="float32"), 5, 0)


def test_images_without_channels_are_told_how_to_get_them(make_dnn: Make, make_spec: Make) -> None:
    for shape, hint in (
        ((6, 6), r"\. If samples of shape \(6, 6\) are images, .* layout: hw of"),
        ((9,), "$"),
    ):
        with pytest.raises(UserCodeError, match=rf"failed: .*KeyError: 'no such thing'{hint}"):
            TorchBackend().build(
                make_dnn(model="torch_modules:failing"), make_spec(shape, dtype="float32"), 5, 0
            )


def test_a_keras_model_names_its_framework(make_dnn: Make, make_spec: Make) -> None:
    with pytest.raises(InputError, match=r"allowed: a torch\.nn\.Module; set framework: tensorflow for it"):
        TorchBackend().build(make_dnn(model="hpcbal.models:mlp"), make_spec(dtype="float32"), 5, 0)


def test_series_need_a_mask_or_lengths(make_dnn: Make, make_spec: Make) -> None:
    spec = make_spec(shape=(None, 3), dtype="float32")
    with pytest.raises(InputError, match=r"without the argument mask or lengths"):
        TorchBackend().build(make_dnn(model="torch_modules:failing_series"), spec, 5, 0)


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        ({"optimizer": "lion"}, r"optimizer\.name: got 'lion', allowed for a model of PyTorch: sgd, adam"),
        ({"optimizer": "adam"}, r"optimizer adam: .*bettas"),
    ],
)
def test_settings_of_optimizers(make_dnn: Make, make_spec: Make, optimizer: Any, words: str) -> None:
    dnn = make_dnn(model="torch_modules:linear", momentum=0.0, **optimizer)
    if optimizer["optimizer"] == "adam":
        object.__setattr__(dnn.optimizer, "args", {"bettas": [0.9, 0.99]})
    with pytest.raises(InputError, match=words):
        TorchBackend().build(dnn, make_spec(dtype="float32"), 5, 0)


@pytest.mark.parametrize(
    ("freeze", "words"),
    [
        (("stemm",), "freeze: got 'stemm', allowed: a layer"),
        (("stem",), "freeze: got 'stem', allowed: a layer of the model: 1"),
        (("1",), "freezes all layers"),
    ],
)
def test_patterns_of_frozen_layers(make_dnn: Make, make_spec: Make, freeze: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        TorchBackend().build(
            make_dnn(model="torch_modules:linear", freeze=freeze), make_spec(dtype="float32"), 5, 0
        )


def test_sparse_gradients_are_refused_before_training(make_dnn: Make, make_spec: Make) -> None:
    dnn = make_dnn(model="torch_modules:embedded")
    with pytest.raises(
        InputError, match=r"0 is an embedding \(_Words\) with sparse=True, allowed: sparse=False"
    ):
        TorchBackend().build(dnn, make_spec(dtype="float32", shape=(4,)), 5, 0)
    frozen = make_dnn(model="torch_modules:embedded", freeze=("0",))
    TorchBackend().build(frozen, make_spec(dtype="float32", shape=(4,)), 5, 0)
