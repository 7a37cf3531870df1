"""Exported models with the meaning of their outputs, and an ensemble as one model."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpcbal.data.arrays import Affine
from hpcbal.errors import InputError
from hpcbal.training.backend import Replica
from hpcbal.training.objective import Link
from hpcbal.training.weights import Array

OUTPUTS_OF_LINK: Mapping[str, str] = {
    "softmax": "logits of the classes; softmax turns them into probabilities",
    "sigmoid": "logits of the labels; sigmoid turns them into probabilities",
    "identity": "predictions, as the loss {loss} takes them",
}
"""The meaning of a model's outputs for people, by the link of its objective."""


def meaning_of(links: Mapping[str, str], losses: Mapping[str, str | None]) -> str:
    """Return the meaning of a model's outputs for people.

    Args:
        links: link of the objective of each output; of one without a name under `UNNAMED`.
        losses: name of the loss of each; None: the default one.
    """
    found = {name: OUTPUTS_OF_LINK[link].format(loss=losses.get(name)) for name, link in links.items()}
    return "; ".join(f"{name}: {text}" if name else text for name, text in found.items())


@dataclass(frozen=True, slots=True)
class Written:
    """A model in a file.

    Attributes:
        output_shape: of the output for one sample, or of each output by name.
        meaning: of the outputs, for people.
        modules: what must be imported before the file is loaded.
        notes: what users should know about it.
    """

    output_shape: tuple[int, ...] | Mapping[str, tuple[int, ...]]
    meaning: str
    modules: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


OF_LINK: Mapping[Link, str] = {
    "softmax": "probabilities of the classes",
    "sigmoid": "probabilities of the labels",
    "identity": "predictions",
}
"""The meaning of the mean of several predictions for people, by the link of their objectives."""

_TOLERANCE = {"float64": 1e-9, "float32": 1e-5}
"""Largest difference from the mean of the members' own predictions, relative to the largest of these."""
_HALF_TOLERANCE = 5e-2


@dataclass(frozen=True, slots=True)
class Member:
    """One DNN of an ensemble.

    Attributes:
        who: the DNN and its model, for messages.
        replica: with the weights to write.
        share: its weight in the mean, > 0; those of all members sum to 1.
        is_torch: whether it is a module of PyTorch; else it is a Keras model.
    """

    who: str
    replica: Replica
    share: float
    is_torch: bool


@dataclass(frozen=True, slots=True)
class Committee:
    """An ensemble to write as one model.

    Attributes:
        members: at least one.
        affines: operations on samples in front of the members, in order.
        link: turns the outputs of each member into what it predicts.
        shape: of one sample.
        dtype: NumPy name of the type of the members' weights.
        precision: `backend.precision` of the run.
        best: place of the member whose time is compared.
    """

    members: Sequence[Member]
    affines: Sequence[Affine]
    link: Link
    shape: tuple[int, ...]
    dtype: str
    precision: str
    best: int = 0

    @property
    def input_dtype(self) -> str:
        """NumPy name of the type of the samples that the model takes."""
        return self.affines[0].dtype if self.affines else self.dtype

    def difference(self, who: str, found: Array, wanted: Array) -> float:
        """Return the largest difference of what was loaded again from the members' own predictions.

        Args:
            who: what was written, for the message.
            found, wanted: predictions for some samples, shape (n, ...).

        Raises:
            InputError: if it is too large.
        """
        if found.shape != wanted.shape:
            raise InputError(f"{who} gives outputs of shape {found.shape}, allowed: {wanted.shape}")
        most = float(np.abs(found - wanted).max())
        limit = _TOLERANCE.get(self.precision, _HALF_TOLERANCE) * max(1.0, float(np.abs(wanted).max()))
        if not most <= limit:
            raise InputError(
                f"{who} gives other predictions than its members (they differ by {most:.1e}, allowed: "
                f"{limit:.1e}); try another format with --to"
            )
        return most


@dataclass(frozen=True, slots=True)
class WrittenCommittee:
    """An ensemble in a file.

    Attributes:
        output_shape: of the output for one sample.
        difference: the largest one from the mean of its members' own predictions, for some samples.
        cost: how many times as long a call takes as one of the best member, for these samples.
        modules: what must be imported before the file is loaded.
        notes: what users should know about it.
    """

    output_shape: tuple[int, ...]
    difference: float
    cost: float
    modules: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


_LEAST_CALLS, _MOST_CALLS = 5, 100
_MOST_S = 1.0
"""After so many seconds, no more calls than the least number are timed."""


def times_as_long(call: Callable[[], object], other: Callable[[], object]) -> float:
    """Return how many times as long a call takes as another one, > 0.

    It is the median over calls in turn, after one of each that does not count: what else the machine does
    meanwhile slows both.
    """
    call()
    other()
    ratios: list[float] = []
    started = time.perf_counter()
    while len(ratios) < _LEAST_CALLS or (
        len(ratios) < _MOST_CALLS and time.perf_counter() - started <= _MOST_S
    ):
        ratios.append(_seconds(call) / _seconds(other))
    return statistics.median(ratios)


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return max(time.perf_counter() - began, 1e-9)
