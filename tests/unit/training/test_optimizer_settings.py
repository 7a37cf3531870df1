"""Clipping and weight decay, with Keras' own training as oracle."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import torch

from hpcbal.config.schema.optimizer import KERAS_OPTIMIZERS, TORCH_OPTIMIZERS, OptimizerConfig
from hpcbal.errors import InputError
from hpcbal.training.emulated_backend import clipped
from hpcbal.training.keras.tensorflow_backend import TensorFlowBackend
from hpcbal.training.keras.trainable import make_optimizer
from hpcbal.training.torch.backend import TorchBackend
from hpcbal.training.user_model import check_optimizer_args

Make = Callable[..., Any]
LINEAR = "training_models:linear"


@pytest.fixture
def build(make_dnn: Make, make_spec: Make) -> Make:
    def make(model: str = LINEAR, **given: Any) -> Any:
        return TensorFlowBackend(precision="float64").build(make_dnn(model=model, **given), make_spec(), 5, 0)

    return make


@pytest.mark.parametrize(
    ("backend", "name", "args", "words"),
    [
        (TorchBackend, "adam", {"betas": 0.9}, "betas: got 0.9, allowed for adam: a list of 2 numbers, such"),
        (TorchBackend, "adam", {"betas": "0.9"}, "betas: got '0.9', allowed for adam: a list of 2 numbers"),
        (TorchBackend, "adam", {"betas": [0.9, 0.99, 0.9]}, "allowed for adam: a list of 2 numbers, such as"),
        (TorchBackend, "adam", {"betas": [0.9, "x"]}, "betas: got [0.9, 'x'], allowed for adam: a list of 2"),
        (TorchBackend, "adam", {"eps": "tiny"}, "eps: got 'tiny', allowed for adam: a number, such as 1e-08"),
        (TorchBackend, "adam", {"amsgrad": 1}, "amsgrad: got 1, allowed for adam: true, false"),
        (TensorFlowBackend, "adam", {"beta_1": [0.9]}, "beta_1: got [0.9], allowed for adam: a number, such"),
    ],
)
def test_arguments_of_another_kind_are_refused_in_one_sentence(
    make_dnn: Make, make_spec: Make, backend: Any, name: str, args: dict[str, Any], words: str
) -> None:
    model = "torch_modules:linear" if backend is TorchBackend else LINEAR
    with pytest.raises(InputError, match=r"DNN dnn: optimizer\.args\.") as caught:
        backend(precision="float64").build(
            make_dnn(model=model, optimizer=name, args=args), make_spec(), 5, 0
        )
    assert words in str(caught.value)


def test_every_keras_optimizer_that_a_file_may_name_exists() -> None:
    for name in KERAS_OPTIMIZERS:
        assert make_optimizer("dnn", OptimizerConfig(name=name, learning_rate=0.1)) is not None


@pytest.mark.parametrize("name", TORCH_OPTIMIZERS)
def test_defaults_of_pytorch_are_arguments_that_pass(name: str) -> None:
    kind = getattr(torch.optim, TORCH_OPTIMIZERS[name])
    given = {
        key: list(parameter.default) if isinstance(parameter.default, tuple) else parameter.default
        for key, parameter in inspect.signature(kind).parameters.items()
        if key not in ("params", "lr") and not torch.is_tensor(parameter.default)
    }
    settings: Any = SimpleNamespace(name=name, args=given)
    check_optimizer_args("dnn", settings, kind)


def part(batch: Any, *places: int) -> Any:
    index = slice(*places)
    return type(batch)(batch.ids[index], batch.x[index], batch.y[index])


@pytest.mark.parametrize("clip_norm", [0.05, 1e6])
@pytest.mark.parametrize("alone", [True, False])
def test_a_gradient_is_clipped_over_the_group(
    build: Make, make_batch: Make, clip_norm: float, alone: bool
) -> None:
    """Three steps of Keras on the whole batch; hpcbal alone, or in uneven shares."""
    replica = build(clip_norm=clip_norm, learning_rate=0.5)
    twin = keras.models.clone_model(replica._model.model)
    twin.set_weights(replica._model.get_weights())
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    twin.compile(keras.optimizers.SGD(0.5, momentum=0.9, global_clipnorm=clip_norm), loss)
    batch = make_batch(13)
    for _ in range(3):
        twin.train_on_batch(batch.x, batch.y)
        if alone:
            replica.train_alone(batch)
        else:
            parts = [replica.compute(part(batch, *at), 13) for at in ((0, 1), (1, 9), (9, 13))]
            replica.apply([sum(tensors) for tensors in zip(*(p.tensors for p in parts), strict=True)])
    for ours, theirs in zip(replica._model.get_weights(), twin.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-10)


def test_excluded_weights_do_not_decay(build: Make, make_batch: Make) -> None:
    batch = make_batch(4)
    decaying, excluded = (
        build(optimizer="sgd", momentum=0.0, learning_rate=0.1, weight_decay=0.5, no_weight_decay=names)
        for names in ((), ("bias",))
    )
    plain = build(optimizer="sgd", momentum=0.0, learning_rate=0.1)
    start = {name: array + 1.0 if "bias" in name else array for name, array in plain.state().items()}
    for replica in (decaying, excluded, plain):
        replica.load_state(
            {k: v for k, v in start.items() if k in replica.state()}
            | {k: v for k, v in replica.state().items() if k not in start}
        )
        replica.train_alone(batch)
    for name, array in excluded.state().items():
        if name.startswith("weights/"):
            same = plain if "bias" in name else decaying
            np.testing.assert_allclose(array, same.state()[name], atol=1e-12, err_msg=name)
            other = decaying if "bias" in name else plain
            assert not np.allclose(array, other.state()[name]), name


def test_exclusions_that_match_no_weight_are_reported(build: Make) -> None:
    replica = build(weight_decay=0.5, no_weight_decay=("bias", "biass"))
    (warning,) = replica.warnings
    assert warning == (
        f"DNN dnn: model {LINEAR}: optimizer.no_weight_decay: no weight has 'biass' in its name; names are "
        "bias, kernel"
    )


def test_a_rate_counts_from_the_next_step_on(build: Make, make_batch: Make) -> None:
    replica, batch = build(momentum=0.0, learning_rate=0.1), make_batch(4)
    replica.train_alone(batch)
    before = replica.state()
    replica.set_learning_rate(0.0)
    replica.train_alone(batch)
    for name, array in replica.state().items():
        if name.startswith("weights/"):
            np.testing.assert_array_equal(array, before[name])
    assert replica.num_traces == 1, "another rate needs no new trace"


def test_the_emulated_backend_clips_alike() -> None:
    long = [np.array([3.0, 0.0]), np.array([[4.0]])]
    assert clipped(long, None) is long
    assert clipped(long, 5.0) is long
    np.testing.assert_allclose(np.concatenate([each.ravel() for each in clipped(long, 1.0)]), [0.6, 0.0, 0.8])
