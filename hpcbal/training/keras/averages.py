"""Exponential averages of the weights of a Keras model, updated after each step of its optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from hpcbal.training.layers import WEIGHTS
from hpcbal.training.weights import TRAINED


class Averages:
    """Averages of trainable variables: after the first update the weights, then decay*a + (1-decay)*w.

    Before it they are the initial weights. Moving statistics have none.

    Attributes:
        evaluated: the averages, in the order of `trainable`; without a decay these themselves.

    Args:
        trainable: variables that have their initial values.
        decay: 0 < decay < 1; None: there are no averages, and all below changes nothing.

    Source: as `use_ema` of Keras' optimizers.
    """

    def __init__(self, trainable: Sequence[keras.Variable], decay: float | None) -> None:
        self._trainable = list(trainable)
        self._decay = decay
        self.evaluated = self._trainable
        if decay is not None:
            self.evaluated = [keras.Variable(v.numpy(), dtype=v.dtype, trainable=False) for v in trainable]

    def update(self, num_updates: tf.Tensor) -> None:
        """Take the weights of this moment in; traced.

        Args:
            num_updates: updates so far, including this one.
        """
        if self._decay is None:
            return
        for average, variable in zip(self.evaluated, self._trainable, strict=True):
            decay = tf.constant(self._decay, variable.value.dtype)
            decay = tf.where(tf.equal(num_updates, 1), tf.zeros_like(decay), decay)
            average.value.assign(decay * average.value + (1.0 - decay) * variable.value)

    def named(self, variables: Mapping[str, keras.Variable]) -> dict[str, keras.Variable]:
        """Return all variables by their names in a state: averages are its weights.

        Args:
            variables: those of model and optimizer by their names without averages.
        """
        found = dict(variables)
        if self._decay is None:
            return found
        average_of = {id(v): average for v, average in zip(self._trainable, self.evaluated, strict=True)}
        for name, variable in variables.items():
            if id(variable) in average_of:
                found[name] = average_of[id(variable)]
                found[f"{TRAINED}{name.removeprefix(WEIGHTS)}"] = variable
        return found
