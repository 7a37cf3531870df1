"""How the training samples of a run are mixed in pairs, and what becomes of all labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.operations.mixing import MixingOperation, weighted_mean
from hpcbal.data.pipeline import SampleStreams
from hpcbal.data.spec import LabelSpec
from hpcbal.errors import DataError

Sample = tuple[NDArray[Any], NDArray[Any]]
"""A sample and its label."""

_STREAM = 0x313C5
"""Separates the random streams from those of the operations on single samples."""


class Mixing:
    """Mixes each training sample with a partner, by one of the operations, all of them equally likely.

    What is drawn depends on seed, pass and sample only.

    Attributes:
        of_classes: whether the dataset's labels are classes; labels are then distributions over them.
        label_spec: spec of the labels of a run.

    Args:
        operations: at least one.
        label: spec of the dataset's labels.
        num_classes: of the dataset.
        seed: of the run, >= 0.

    Raises:
        DataError: if labels have no mean, or are those of places and an operation is not even.
    """

    def __init__(
        self, operations: Sequence[MixingOperation], label: LabelSpec, num_classes: int, seed: int
    ) -> None:
        self.of_classes = label.is_class
        if not self.of_classes and np.dtype(label.dtype).kind != "f":
            names = " and ".join(operation.name for operation in operations)
            raise DataError(
                f"preprocessing: {names}: the dataset's labels are {label}, allowed: one class for each "
                "sample, or floating-point numbers; declare numbers as float32 in label_spec, or remove it"
            )
        uneven = [operation.name for operation in operations if not operation.is_even]
        if uneven and len(label.shape) > 1:
            raise DataError(
                f"preprocessing: {uneven[0]}: the dataset's labels are {label}, which may be about each "
                "place of an image, allowed: a class, a number or one list of numbers for each sample; use "
                "mixup, or remove it"
            )
        self.label_spec = LabelSpec((num_classes,), "float32") if self.of_classes else label
        self._operations = tuple(operations)
        self._num_classes = num_classes
        self._streams = SampleStreams(seed, _STREAM)

    def label(self, label: NDArray[Any]) -> NDArray[Any]:
        """The label of a sample that is not mixed: a class as a distribution (one-hot)."""
        if not self.of_classes:
            return label
        one_hot = np.zeros(self._num_classes, np.float32)
        one_hot[label] = 1.0
        return one_hot

    def mix(self, sample_id: int, pass_index: int, own: Sample, partner: Sample) -> Sample:
        """Mix a sample with its partner; writes to neither of them.

        Args:
            sample_id: of the sample.
            pass_index: >= 0.
            own: the sample, with a label of `label_spec`.
            partner: likewise.
        """
        rng = self._streams.stream(pass_index, sample_id)
        number = int(rng.integers(len(self._operations))) if len(self._operations) > 1 else 0
        operation = self._operations[number]
        if operation.p < 1.0 and rng.random() >= operation.p:
            return own
        mixed, weight = operation.mix(own[0], partner[0], rng)
        return mixed, weighted_mean(own[1], partner[1], weight)
