"""A Keras model whose weights are one vector, as parameter servers hold them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hpcbal.config.schema.dnn import DnnConfig
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.errors import InputError
from hpcbal.training.backend import Batch, Sums
from hpcbal.training.devices import MAX_DRAWS_PER_STEP, thread_counts
from hpcbal.training.groups import NonFiniteError
from hpcbal.training.keras.plain_model import user_model
from hpcbal.training.keras.tensorflow_backend import TensorFlowBackend

Vector = NDArray[np.float32]


class VectorReplica:
    """Computes gradients of a Keras model whose weights come and go as vectors.

    Nothing here trains: whoever calls it applies the gradients. TensorFlow computes on cores, with one thread
    unless `OMP_NUM_THREADS` and the like say otherwise: other ranks have cores of their own.

    Attributes:
        num_weights: of all trainable variables.
        num_statistics: of all variables that a step moves without a gradient, such as moving means.
        first: initial weights and statistics.
        warnings: what is probably a mistake in the model, as sentences.

    Args:
        dnn: model, loss and metrics; its optimizer is not used.
        sample, label: shapes and types of one sample and one label.
        num_classes: number of classes, if labels are classes.
        seed: of the initial weights.

    Raises:
        InputError: the model does not fit, or has layers that sum over the workers.
        UserCodeError: it cannot be built or called.
    """

    def __init__(
        self, dnn: DnnConfig, sample: SampleSpec, label: LabelSpec, num_classes: int, seed: int
    ) -> None:
        _compute_on_cores()
        self._replica = replica = TensorFlowBackend().build(dnn, sample, num_classes, seed, label=label)
        if replica.exchange is not None:
            raise InputError(
                f"DNN {dnn.name}: model {dnn.model} has SyncBatchNormalization, whose ranks meet within a "
                "step; allowed on parameter servers: keras.layers.BatchNormalization"
            )
        self.warnings = replica.warnings
        self._weights = replica._trainable
        self._statistics = [variable for _, variable in replica._statistics]
        self._seeds = [variable for _, variable in replica._seeds]
        self._first_seeds = [np.array(variable.numpy()) for variable in self._seeds]
        self.first = _vector_of(self._weights), _vector_of(self._statistics)
        self.num_weights, self.num_statistics = (len(vector) for vector in self.first)
        self._joined = tf.function(_joined, autograph=False)
        vectors = [tf.TensorSpec([len(vector)], tf.float32) for vector in self.first]
        self._take = tf.function(self._traced_take, input_signature=vectors, autograph=False)

    @property
    def model(self) -> keras.Model:
        """The user's model, with the weights of this moment."""
        return user_model(self._replica)

    def load(self, weights: Vector, statistics: Vector) -> None:
        """Take over weights and statistics, which may change afterwards."""
        # TensorFlow may use the memory in place.
        self._take(tf.convert_to_tensor(weights.copy()), tf.convert_to_tensor(statistics.copy()))

    def _traced_take(self, weights: tf.Tensor, statistics: tf.Tensor) -> None:
        _assign(self._weights, weights)
        _assign(self._statistics, statistics)

    def gradient(self, batch: Batch, num_samples: float, draw: int) -> tuple[Vector, Vector, Sums]:
        """Compute the gradient of sum(losses) / num_samples.

        Args:
            batch: samples, at least one.
            num_samples: of the whole step.
            draw: random layers draw the same for the same number and first sample.

        Returns: the gradient; by how much the statistics move, weighted with the batch's share of the step,
            and exactly for a batch that is the step; sums of losses and metrics.

        Raises:
            NonFiniteError: the loss or a gradient is not finite.
        """
        for variable, first in zip(self._seeds, self._first_seeds, strict=True):
            variable.assign(first + np.array([0, draw * MAX_DRAWS_PER_STEP], first.dtype))
        # The weight of a share turns into the divisor of its loss.
        contribution = self._replica.compute(batch, len(batch.ids), len(batch.ids) / num_samples)
        tensors = list(contribution.tensors)
        num = len(self._weights)
        gradient = self._joined(tensors[:num]).numpy()
        moved = np.zeros(0, np.float32)
        if self._statistics:
            moved = self._joined(self._moves(tensors[num:])).numpy()
        return gradient, moved, contribution.sums

    def _moves(self, differences: list[tf.Tensor]) -> list[tf.Tensor]:
        """Take off the square of the mean's difference, which replicas add to sum variances over ranks."""
        for variance, (mean, rate) in self._replica._variances.items():
            differences[variance] = differences[variance] - tf.square(differences[mean]) / rate
        return differences

    def evaluate(self, batch: Batch) -> Sums:
        """Sums of losses and metrics; the loss is NaN if it is not finite."""
        try:
            return self._replica.evaluate(batch)
        except NonFiniteError:
            return Sums(float("nan"), len(batch.ids), np.zeros(self._replica.num_states))

    @property
    def num_states(self) -> int:
        """Number of sums behind the metrics."""
        return self._replica.num_states

    def metrics(self, sums: Sums) -> dict[str, float]:
        """Loss and metrics by name."""
        return self._replica.metrics(sums)


def _compute_on_cores() -> None:
    """Choose devices and threads, unless TensorFlow has begun to compute in this process."""
    intra, inter = thread_counts(os.environ, 1)
    with contextlib.suppress(RuntimeError):  # it has: they stay as they are
        tf.config.set_visible_devices([], "GPU")
        tf.config.threading.set_intra_op_parallelism_threads(intra)
        tf.config.threading.set_inter_op_parallelism_threads(inter)


def _vector_of(variables: Sequence[keras.Variable]) -> Vector:
    parts = [np.asarray(variable.numpy(), np.float32).reshape(-1) for variable in variables]
    return np.concatenate([np.zeros(0, np.float32), *parts])


def _assign(variables: Sequence[keras.Variable], vector: tf.Tensor) -> None:
    sizes = [int(np.prod(variable.shape)) for variable in variables]
    for variable, part in zip(variables, tf.split(vector, sizes) if sizes else [], strict=True):
        variable.value.assign(tf.reshape(part, variable.shape))


def _joined(tensors: Sequence[Any]) -> tf.Tensor:
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)
