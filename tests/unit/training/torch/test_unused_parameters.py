"""Parameters without a gradient stay as they are, as in a plain loop, whichever ranks had one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch_modules

from hpcbal.errors import CheckpointError
from hpcbal.training.backend import LocalCollective
from hpcbal.training.step import train_step
from hpcbal.training.torch.backend import TorchBackend

Make = Callable[..., Any]
OPTIMIZERS = [("sgd", {"momentum": 0.9}), ("adamw", {"momentum": 0.0})]


@pytest.fixture
def build(make_dnn: Make, make_spec: Make) -> Make:
    def make(precision: str = "float64", **given: Any) -> Any:
        dnn = make_dnn(model="torch_modules:unused", learning_rate=0.01, weight_decay=0.1, **given)
        dtype = "float64" if precision == "float64" else "float32"
        return TorchBackend(precision=precision).build(dnn, make_spec(dtype=dtype), 5, 0)

    return make


def batches(make_batch: Make) -> list[Any]:
    """Two steps without a large sample, one whose last sample is large, and one more without."""
    made = [make_batch(9, step) for step in range(4)]
    made[2].x[8] += 10.0
    return made


def assert_equal_states(one: Any, other: Any) -> None:
    assert list(one.state()) == list(other.state())
    for name, array in one.state().items():
        np.testing.assert_allclose(array, other.state()[name], rtol=1e-11, atol=1e-13, err_msg=name)


@pytest.mark.parametrize(("optimizer", "given"), OPTIMIZERS)
def test_only_what_has_a_gradient_moves(build: Make, make_batch: Make, optimizer: str, given: Any) -> None:
    """The oracle is plain PyTorch; one replica trains alone, the other in shares, one with a large sample."""
    alone, split = (build(optimizer=optimizer, **given) for _ in range(2))
    module = torch_modules.unused((1, 6, 6), 5).double()
    module.load_state_dict({name[8:]: torch.from_numpy(array) for name, array in alone.weights().items()})
    before = alone.weights()
    kinds = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
    args = {"momentum": 0.9} if optimizer == "sgd" else {}
    plain = kinds[optimizer](module.parameters(), lr=0.01, weight_decay=0.1, **args)
    for number, batch in enumerate(batches(make_batch)):
        train_step(alone, batch, 9, LocalCollective())
        shares = [(0, 2), (2, 6), (6, 9)]
        parts = [type(batch)(batch.ids[a:b], batch.x[a:b], batch.y[a:b]) for a, b in shares]
        computed = [split.compute(part, 9).tensors for part in parts]
        split.apply([sum(tensor) for tensor in zip(*computed, split.zeros().tensors, strict=True)])
        plain.zero_grad()
        logits = module(torch.from_numpy(batch.x).permute(0, 3, 1, 2))
        torch.nn.functional.cross_entropy(logits, torch.from_numpy(batch.y)).backward()
        plain.step()
        moved = not np.array_equal(alone.weights()["weights/rarely.weight"], before["weights/rarely.weight"])
        assert moved == (number >= 2)
    for replica in (alone, split):
        for name, tensor in module.state_dict().items():
            np.testing.assert_allclose(
                replica.weights()[f"weights/{name}"], tensor.numpy(), rtol=1e-10, atol=1e-12, err_msg=name
            )
        np.testing.assert_array_equal(
            replica.weights()["weights/never.weight"], before["weights/never.weight"]
        )
    assert not any("never" in name for name in alone.state() if name.startswith("optimizer/"))


@pytest.mark.parametrize("stop", [0, 1, 2, 3])
def test_a_state_without_them_goes_on_exactly(build: Make, make_batch: Make, stop: int) -> None:
    given = {"optimizer": "adamw", "momentum": 0.0}
    whole, first, second = (build(**given) for _ in range(3))
    train_step(
        second, batches(make_batch)[2], 9, LocalCollective()
    )  # it has a state of all that can have one
    for number, batch in enumerate(batches(make_batch)):
        if number == stop:
            second.load_state(first.state())
        train_step(whole, batch, 9, LocalCollective())
        train_step(first if number < stop else second, batch, 9, LocalCollective())
    assert_equal_states(whole, second)


def test_half_a_state_of_a_parameter_is_refused(build: Make, make_batch: Make) -> None:
    replica = build(optimizer="adamw", momentum=0.0)
    train_step(replica, make_batch(9), 9, LocalCollective())
    state = replica.state()
    damaged = {name: array for name, array in state.items() if name != "optimizer/shift/exp_avg_sq"}
    with pytest.raises(CheckpointError, match="exp_avg_sq"):
        replica.load_state(damaged)


def test_scaled_losses_leave_them_too(build: Make, make_batch: Make) -> None:
    replica = build(precision="mixed_float16")
    before = replica.weights()
    for step in range(2):
        batch = make_batch(9, step, dtype="float32")
        replica.apply(replica.compute(batch, 9).tensors)
    np.testing.assert_array_equal(replica.weights()["weights/never.bias"], before["weights/never.bias"])
    assert not np.array_equal(replica.weights()["weights/part.weight"], before["weights/part.weight"])
