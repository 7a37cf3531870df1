"""Fit a small network per worker with Keras, all of a group at once, and stop before they fit the noise."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcbal import env
from hpcbal.policies.batching.time_curves import FloatArray
from hpcbal.speed_models.recording import Rows

if TYPE_CHECKING:
    import keras

DTYPE = "float32"
BATCH_ROWS = 128
PASSES = 5  # over the rows per Keras epoch: starting an epoch costs as much as ten steps
FIRST_EPOCHS, REUSED_EPOCHS = 40, 15
PATIENCE_EPOCHS = 5
FIRST_RATE, REUSED_RATE = 0.02, 0.005
PENALTY = 1e-3  # on squared weights, per squared unit of standardised error

# A network's weights as NumPy arrays whose first axis is the worker.
Weights = tuple[FloatArray, ...]


def import_keras() -> Any:
    """Import Keras with TensorFlow."""
    os.environ.update(env.tensorflow_settings())
    import keras

    return keras


def penalty(num_workers: int) -> keras.Regularizer:
    """Penalty on large weights; the loss that it is added to is a mean over workers."""
    regularizer: keras.Regularizer = import_keras().regularizers.L2(PENALTY / num_workers)
    return regularizer


def train(
    network: keras.Model,
    rows: Rows,
    read: Callable[[keras.Model], Weights],
    *,
    shape: Callable[[FloatArray], FloatArray],
    is_reused: bool,
) -> Weights:
    """Return, for each worker, the weights with the least error on the rows held out.

    The networks of all workers are one model without connections between workers, so each has its own best
    epoch. Training ends when no worker has improved for `PATIENCE_EPOCHS`.

    Args:
        network: network with its initial weights; outputs of shape (n, num_workers, 1).
        rows: standardised, in the order of time.
        read: returns the weights by worker.
        shape: converts inputs (n, num_workers, num_inputs) to the network's input.
        is_reused: whether the initial weights were fitted before: they are then changed in smaller steps.

    Source: [LBBSP] Sec. 4 (Keras, model reusing, early stopping).
    """
    keras = import_keras()
    fitted, held_out = rows.split()
    rng = np.random.default_rng(0)
    order = np.concatenate([rng.permutation(len(fitted.targets)) for _ in range(PASSES)])
    inputs, targets = shape(fitted.inputs[order]), fitted.targets[order][..., None]
    num_steps = math.ceil(len(order) / BATCH_ROWS)
    rate, num_epochs = (REUSED_RATE, REUSED_EPOCHS) if is_reused else (FIRST_RATE, FIRST_EPOCHS)
    schedule = keras.optimizers.schedules.CosineDecay(rate, num_epochs * num_steps, alpha=0.01)
    floatx = keras.config.floatx()  # the type of losses: the user's keras.json, or other networks, may set it
    keras.config.set_floatx(DTYPE)
    try:
        network.compile(
            optimizer=keras.optimizers.Adam(schedule),
            loss="mse",
            steps_per_execution=num_steps,
            jit_compile=False,  # compiling would take longer than fitting
        )
        best = _keep_best(shape(held_out.inputs), held_out, read, network)
        network.fit(
            inputs,
            targets,
            sample_weight=fitted.weights[order],
            batch_size=BATCH_ROWS,
            epochs=num_epochs,
            shuffle=False,  # done above, with our own seed
            verbose=0,
            callbacks=[best],
        )
    finally:
        keras.config.set_floatx(floatx)
    weights: Weights = best.weights
    return weights


def _keep_best(
    inputs: FloatArray, held_out: Rows, read: Callable[[keras.Model], Weights], network: keras.Model
) -> Any:
    """Make a callback whose `weights` are those of each worker's best epoch so far."""
    library = import_keras()
    tensor = library.ops.convert_to_tensor(inputs)

    def errors(model: keras.Model) -> FloatArray:
        missed = np.asarray(model(tensor))[..., 0] - held_out.targets
        means: FloatArray = (np.square(missed) * held_out.weights).mean(axis=0)
        return means

    class KeepBest(library.callbacks.Callback):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weights: Weights = tuple(part.copy() for part in read(network))
            self.least = errors(network)
            self.waited = 0

        def on_epoch_end(self, epoch: int, logs: object = None) -> None:
            now = errors(self.model)
            better = now < self.least
            self.waited = 0 if better.any() else self.waited + 1
            self.least = np.where(better, now, self.least)
            if better.any():
                for kept, new in zip(self.weights, read(self.model), strict=True):
                    kept[better] = new[better]
            if self.waited >= PATIENCE_EPOCHS:
                self.model.stop_training = True

    return KeepBest()
