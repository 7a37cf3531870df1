"""A network trains alike on TensorFlow, as a module of PyTorch, and with Keras on its torch backend."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hpcbal.training.backend import LocalCollective
from hpcbal.training.keras.tensorflow_backend import TensorFlowBackend
from hpcbal.training.step import train_step
from hpcbal.training.torch.backend import TorchBackend

Make = Callable[..., Any]
HERE = Path(__file__).parent
SIZES = (8, 3, 5, 8, 7)
NAMES = ("features.weight", "features.bias", "norm.weight", "norm.bias", "norm.running_mean")
NAMES += ("norm.running_var", "logits.weight", "logits.bias")
"""Of the module, in the order of Keras' weights."""


def as_torch(array: NDArray[Any]) -> NDArray[Any]:
    """Return a kernel (..., in, out) as (out, in, ...)."""
    return np.moveaxis(array, (-1, -2), (0, 1)) if array.ndim > 1 else array


def assert_close(one: Any, other: Any, atol: float, name: str = "") -> None:
    np.testing.assert_allclose(one, other, rtol=0.0, atol=atol, err_msg=name)


@pytest.mark.timeout(120)
def test_three_ways_give_the_same_losses_and_weights(
    make_dnn: Make, make_spec: Make, make_batch: Make, tmp_path: Path
) -> None:
    """In float64; Keras on its torch backend computes parts of it in 32 bits.

    0.875 has an exact binary form: Keras rounds the momentum to 32 bits in float64, too.
    """
    given = {"learning_rate": 0.05, "momentum": 0.875, "nesterov": True}
    keras_dnn = make_dnn(model="training_models:pooled", **given)
    torch_dnn = make_dnn(model="torch_modules:pooled", **given)
    ours = TensorFlowBackend(precision="float64").build(keras_dnn, make_spec(), 5, 0)
    module = TorchBackend(precision="float64").build(torch_dnn, make_spec(), 5, 0)
    batches = [make_batch(n, step) for step, n in enumerate(SIZES)]
    start = ours._model.get_weights()
    begun = {f"weights/{name}": as_torch(array) for name, array in zip(NAMES, start, strict=True)}
    module.load_state(module.state() | begun)
    np.savez(
        tmp_path / "in.npz",
        steps=len(batches),
        **{f"weight{number}": array for number, array in enumerate(start)},
        **{f"x{step}": batch.x for step, batch in enumerate(batches)},
        **{f"y{step}": batch.y for step, batch in enumerate(batches)},
    )
    path = os.pathsep.join([str(HERE.parents[1] / "mpi" / "programs"), os.environ.get("PYTHONPATH", "")])
    program = [sys.executable, str(HERE / "programs" / "keras_on_torch.py")]
    subprocess.run(
        [*program, str(tmp_path / "in.npz"), str(tmp_path / "out.npz")],
        env=os.environ | {"PYTHONPATH": path},
        check=True,
        timeout=100,
    )
    on_torch = np.load(tmp_path / "out.npz")
    losses: dict[str, list[float]] = {
        name: [
            train_step(replica, batch, len(batch.ids), LocalCollective()).sums.mean_loss for batch in batches
        ]
        for name, replica in (("tensorflow", ours), ("torch", module))
    }
    assert str(on_torch["backend"]) == "torch"
    assert_close(losses["tensorflow"], losses["torch"], 1e-10)
    assert_close(losses["torch"], on_torch["losses"], 1e-6)
    trained = module.weights()
    for number, (name, array) in enumerate(zip(NAMES, ours._model.get_weights(), strict=True)):
        assert_close(array, on_torch[f"weight{number}"], 1e-6, name)
        if name != "norm.running_var":  # that of PyTorch has no bias
            assert_close(as_torch(array), trained[f"weights/{name}"], 1e-10, name)
