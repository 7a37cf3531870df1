"""Losses and metrics as users write them, right and wrong."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops


def quantile(y: Any, outputs: Any, share: float = 0.5) -> Any:
    difference = ops.reshape(y, (-1, 1)) - outputs
    return ops.maximum(share * difference, (share - 1.0) * difference)


def mean_of_batch(y: Any, outputs: Any) -> Any:
    return ops.mean((ops.reshape(y, (-1, 1)) - outputs) ** 2)


def ranked(y: Any, outputs: Any) -> Any:
    return ops.square(outputs[:, 0] - ops.mean(outputs)) + 0.0 * y


def rounded(y: Any, outputs: Any) -> Any:
    return keras.ops.cast(keras.ops.not_equal(y, keras.ops.round(outputs[:, 0])), outputs.dtype)


def raising(y: Any, outputs: Any) -> Any:
    raise ValueError("no such label")


def within_one(y: Any, predictions: Any) -> Any:
    return ops.cast(ops.abs(ops.reshape(y, (-1, 1)) - predictions) <= 1.0, predictions.dtype)


class Largest(keras.metrics.Metric):
    """Its state is a maximum, which does not add up."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.largest = self.add_variable((), initializer="zeros", name="largest")

    def update_state(self, y: Any, predictions: Any, sample_weight: Any = None) -> None:
        self.largest.assign(ops.maximum(self.largest, ops.max(ops.abs(predictions))))

    def result(self) -> Any:
        return self.largest


class MeanIoUOfProbabilities(keras.metrics.MeanIoU):
    """A user's IoU from probabilities; its dtype is int unless given."""

    def update_state(self, y: Any, predictions: Any, sample_weight: Any = None) -> None:
        super().update_state(y, ops.argmax(predictions, axis=-1), sample_weight)


class Hits(keras.metrics.Metric):
    """Counts in variables of its dtype."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.hits = self.add_variable((), initializer="zeros", dtype=self.dtype, name="hits")
        self.seen = self.add_variable((), initializer="zeros", dtype=self.dtype, name="seen")

    def update_state(self, y: Any, predictions: Any, sample_weight: Any = None) -> None:
        found = ops.equal(ops.cast(ops.argmax(predictions, axis=-1), "int64"), ops.cast(y, "int64"))
        self.hits.assign_add(ops.sum(ops.cast(found, self.dtype)))
        self.seen.assign_add(ops.sum(ops.ones_like(found, self.dtype)))

    def result(self) -> Any:
        return ops.cast(self.hits, "float32") / ops.cast(self.seen, "float32")


class Unfinished(keras.metrics.Mean):
    """Its result raises."""

    def update_state(self, y: Any, predictions: Any, sample_weight: Any = None) -> None:
        super().update_state(predictions)

    def result(self) -> Any:
        raise RuntimeError("no result yet")


class AsWideAsTheBatch(keras.metrics.Metric):
    """Its state fits the three samples on which it is tried, and no other number."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.found = self.add_variable((3,), initializer="zeros", name="found")

    def update_state(self, y: Any, predictions: Any, sample_weight: Any = None) -> None:
        self.found.assign(predictions[:, 0])

    def result(self) -> Any:
        return ops.mean(self.found)


class Named(keras.metrics.Mean):
    """Its result is several numbers with names."""

    def update_state(self, y: Any, predictions: Any, sample_weight: Any = None) -> None:
        super().update_state(predictions)

    def result(self) -> Any:
        return {"low": super().result(), "high": super().result()}


def cross_entropy(y: Any, outputs: Any) -> Any:
    """Of probabilities."""
    return keras.losses.sparse_categorical_crossentropy(y, outputs)


def from_logits(y: Any, outputs: Any) -> Any:
    """Keras looks for the logits if a model ends in softmax."""
    return keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True)


def of_yes(y: Any, outputs: Any) -> Any:
    return keras.losses.binary_crossentropy(keras.ops.expand_dims(y, -1), outputs)
