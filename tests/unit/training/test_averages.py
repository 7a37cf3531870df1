"""Averages of the weights: those of Keras and of PyTorch, in the place of the weights after each update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import torch
import torch_modules

from hpcbal.errors import InputError
from hpcbal.training.backend import LocalCollective, Sums
from hpcbal.training.emulated_backend import EmulatedBackend
from hpcbal.training.keras.tensorflow_backend import TensorFlowBackend
from hpcbal.training.step import train_step
from hpcbal.training.torch.backend import TorchBackend
from hpcbal.training.weights import TRAINED, WEIGHTS, with_weights

Make = Callable[..., Any]
BACKENDS = {"tensorflow": TensorFlowBackend, "torch": TorchBackend}
NORMALISED = {"tensorflow": "training_models:normalised", "torch": "torch_modules:normalised"}
RANDOM = {"tensorflow": "training_models:random", "torch": "torch_modules:dropping"}

both = pytest.mark.parametrize("framework", BACKENDS)


@pytest.fixture
def build(make_dnn: Make, make_spec: Make) -> Make:
    def make(framework: str, model: str = "", precision: str = "float64", **given: Any) -> Any:
        dtype = "float64" if precision == "float64" else "float32"
        dnn = make_dnn(model=model or NORMALISED[framework], **given)
        return BACKENDS[framework](precision=precision).build(dnn, make_spec(dtype=dtype), 5, 0)

    return make


def train(replica: Any, make_batch: Make, num_steps: int, first: int = 0, dtype: str = "float64") -> None:
    for number in range(first, first + num_steps):
        train_step(replica, make_batch(7, number, dtype=dtype), 7, LocalCollective())


def trained(replica: Any) -> dict[str, np.ndarray]:
    """The weights that training goes on from, by their names among the weights."""
    state = replica.state()
    return {f"{WEIGHTS}{n.removeprefix(TRAINED)}": a for n, a in state.items() if n.startswith(TRAINED)}


def test_they_are_those_of_keras(build: Make, make_batch: Make) -> None:
    replica = build("tensorflow", ema=0.8, learning_rate=0.05)
    twin = keras.models.clone_model(replica._model.model)
    twin.set_weights(replica._model.get_weights())
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9, use_ema=True, ema_momentum=0.8)
    twin.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for number in range(5):
        batch = make_batch(7, number)
        train_step(replica, batch, 7, LocalCollective())
        twin.train_on_batch(batch.x, batch.y)
        averages = optimizer._model_variables_moving_average
        for name, average in zip(trained(replica), averages, strict=True):
            np.testing.assert_allclose(replica.weights()[name], average.numpy(), atol=1e-12, err_msg=name)
        for ours, theirs in zip(trained(replica).values(), twin.trainable_variables, strict=True):
            np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-12)


def test_they_are_those_of_pytorch(build: Make, make_batch: Make) -> None:
    replica = build("torch", ema=0.8, learning_rate=0.05)
    module = torch_modules.normalised((1, 6, 6), 5)
    module.double().eval()(torch.zeros(1, 1, 6, 6, dtype=torch.float64))
    module.load_state_dict({name[8:]: torch.from_numpy(array) for name, array in replica.weights().items()})
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    swa = torch.optim.swa_utils
    averaged = swa.AveragedModel(module, multi_avg_fn=swa.get_ema_multi_avg_fn(0.8))
    module.train()
    for number in range(5):
        batch = make_batch(7, number)
        train_step(replica, batch, 7, LocalCollective())
        logits = module(torch.from_numpy(batch.x).permute(0, 3, 1, 2))
        torch.nn.functional.cross_entropy(logits, torch.from_numpy(batch.y)).backward()
        optimizer.step()
        optimizer.zero_grad()
        averaged.update_parameters(module)
        for name, parameter in averaged.module.named_parameters():
            ours = replica.weights()[f"weights/{name}"]
            np.testing.assert_allclose(ours, parameter.detach().numpy(), atol=1e-12, err_msg=name)
        for name, buffer in module.named_buffers():
            np.testing.assert_allclose(replica.weights()[f"weights/{name}"], buffer.numpy(), atol=1e-12)


@both
def test_averaging_changes_nothing_in_training(build: Make, make_batch: Make, framework: str) -> None:
    plain, averaging = build(framework), build(framework, ema=0.7)
    train(plain, make_batch, 4)
    train(averaging, make_batch, 4)
    of_plain, of_averaging = plain.weights(), {**averaging.weights(), **trained(averaging)}
    assert list(of_plain) == list(of_averaging)
    for name, array in of_plain.items():
        np.testing.assert_array_equal(array, of_averaging[name], err_msg=name)
    changed = {
        name for name, array in averaging.weights().items() if not np.array_equal(array, of_plain[name])
    }
    assert changed == set(trained(averaging))  # not the moving statistics


@both
def test_the_averages_are_evaluated_and_predict(build: Make, make_batch: Make, framework: str) -> None:
    """The oracle: a replica without averages that has these weights, as `evaluate` and `export` make it."""
    replica, kept = build(framework, ema=0.7), build(framework)
    train(replica, make_batch, 4)
    before, batch = replica.state(), make_batch(6, 9)
    kept.load_state({**kept.state(), **replica.weights()})
    assert replica.evaluate(batch).loss == pytest.approx(kept.evaluate(batch).loss, rel=1e-13)
    np.testing.assert_allclose(replica.predict(batch), kept.predict(batch), rtol=1e-13)
    for name, array in replica.state().items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


@both
@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_a_resumed_training_has_the_same_bits(
    build: Make, make_batch: Make, framework: str, num_steps: int
) -> None:
    given = {"ema": 0.7, "accumulate": 2, "optimizer": "adam", "momentum": 0.0, "learning_rate": 0.01}
    first, second = (build(framework, RANDOM[framework], **given) for _ in range(2))
    train(first, make_batch, num_steps)
    train(second, make_batch, 2, first=7)
    second.load_state(first.state())
    for replica in (first, second):
        train(replica, make_batch, 3, first=num_steps)
    assert list(first.state()) == list(second.state())
    for name, array in first.state().items():
        np.testing.assert_array_equal(array, second.state()[name], err_msg=name)
    assert sum(array.nbytes for array in first.state().values()) == first.num_bytes


@both
def test_a_group_has_the_averages_of_one_process(build: Make, make_batch: Make, framework: str) -> None:
    model = {"tensorflow": "training_models:linear", "torch": "torch_modules:linear"}[framework]
    alone, group = build(framework, model, ema=0.7), build(framework, model, ema=0.7, accumulate=2)
    for number in range(4):
        batch = make_batch(7, number)
        train_step(alone, batch, 7, LocalCollective())
        parts = [
            group.compute(type(batch)(batch.ids[a:b], batch.x[a:b], batch.y[a:b]), 7)
            for a, b in ((0, 1), (1, 7))
        ]
        tensors = zip(*(part.tensors for part in (*parts, group.zeros())), strict=True)
        group.apply([sum(each) for each in tensors])
        assert sum((part.sums for part in parts), Sums()).count == 7
    for name, array in alone.state().items():
        np.testing.assert_allclose(array, group.state()[name], rtol=1e-10, atol=1e-10, err_msg=name)


@both
def test_before_the_first_update_they_are_the_initial_weights(
    build: Make, make_batch: Make, framework: str
) -> None:
    plain, averaging = build(framework), build(framework, ema=0.999)
    for name, array in plain.weights().items():
        np.testing.assert_array_equal(array, averaging.weights()[name], err_msg=name)
    train(averaging, make_batch, 1)
    for name, array in trained(averaging).items():
        np.testing.assert_array_equal(array, averaging.weights()[name], err_msg=name)


@both
def test_other_initial_weights_are_both_averages_and_weights(
    build: Make, make_batch: Make, framework: str
) -> None:
    source, replica = build(framework), build(framework, ema=0.999)
    train(source, make_batch, 3)
    replica.load_state(with_weights(replica.state(), source.weights()))
    for name, array in {**replica.weights(), **trained(replica)}.items():
        np.testing.assert_array_equal(array, source.weights()[name], err_msg=name)
    assert source.state().keys() == with_weights(source.state(), source.weights()).keys()


@both
def test_a_skipped_step_does_not_count(build: Make, make_batch: Make, framework: str) -> None:
    model = {"tensorflow": "training_models:linear", "torch": "torch_modules:linear"}[framework]
    replica = build(framework, model, precision="mixed_float16", ema=0.9)
    replica.load_state({**replica.state(), "optimizer/loss_scale": np.array(2.0**40, np.float32)})
    before = replica.weights()
    train(replica, make_batch, 1, dtype="float32")
    assert replica.take_skipped_steps() == 1
    for name, array in replica.weights().items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)
    replica.load_state({**replica.state(), "optimizer/loss_scale": np.array(8.0, np.float32)})
    train(replica, make_batch, 1, first=1, dtype="float32")
    assert replica.take_skipped_steps() == 0
    for name, array in trained(replica).items():
        np.testing.assert_array_equal(array, replica.weights()[name], err_msg=name)


def test_frozen_weights_have_no_average(build: Make, make_batch: Make) -> None:
    replica = build("torch", freeze=("0", "1"), ema=0.9)
    train(replica, make_batch, 2)
    assert {name.removeprefix(WEIGHTS).split(".")[0] for name in trained(replica)} == {"3", "4", "6"}
    replica = build("tensorflow", freeze=("conv2d",), ema=0.9)
    train(replica, make_batch, 2)
    assert not any("conv2d" in name for name in trained(replica))
    assert trained(replica)


def test_weights_that_two_modules_share_have_one_average(build: Make, make_batch: Make) -> None:
    replica = build("torch", "torch_modules:tied", ema=0.5)
    train(replica, make_batch, 3)
    weights = replica.weights()
    np.testing.assert_array_equal(weights["weights/first.weight"], weights["weights/second.weight"])
    assert list(trained(replica)) == ["weights/first.weight", "weights/logits.weight", "weights/logits.bias"]
    again = build("torch", "torch_modules:tied", ema=0.5)
    again.load_state(replica.state())
    for name, array in replica.state().items():
        np.testing.assert_array_equal(array, again.state()[name], err_msg=name)


def test_the_emulated_backend_has_none(make_dnn: Make, make_spec: Make) -> None:
    with pytest.raises(InputError, match=r"ema: got 0\.9, allowed with the emulated backend: null"):
        EmulatedBackend({}).build(make_dnn(ema=0.9), make_spec(), 5, seed=0)
