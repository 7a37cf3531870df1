"""A dataset and a model that tests can control: configurations name them, tests set `HOOKS`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.models import EmulatedModel

NUM_FEATURES = 6

HOOKS: dict[str, Callable[[int], Any]] = {}
"""Called by name when a model is built, with 0, and in its training steps, with the number of the step; by
`call`, with the number of the epoch that has ended."""

RANK = threading.local()
"""`RANK.number` is the rank that the calling thread plays."""

MENDED = threading.Event()
"""When it is set, broken points can be read."""

READS: list[int] = []
"""Ids of the points that were read, over all ranks."""

TRAINED: list[tuple[str, int, float]] = []
"""In training steps: the hook of the model, the rank, and the first number of a point."""


class Points:
    """Noisy points around three centres; the first `broken` ones cannot be read."""

    num_classes = 3
    sample_spec = SampleSpec.of((NUM_FEATURES,), "float64")
    label_spec = LabelSpec((), "int64")

    def __init__(self, num_samples: int, broken: int) -> None:
        rng = np.random.default_rng(1)
        self._labels = np.arange(num_samples) % 3
        centres = rng.normal(size=(3, NUM_FEATURES))
        self._points = centres[self._labels] + rng.normal(size=(num_samples, NUM_FEATURES))
        self._broken = broken

    def __len__(self) -> int:
        return len(self._points)

    def read(self, sample_id: int) -> tuple[np.ndarray, int]:
        READS.append(sample_id)
        if sample_id < self._broken and not MENDED.is_set():
            raise ValueError("the point is broken")
        return self._points[sample_id], int(self._labels[sample_id])

    def describe(self, sample_id: int) -> str:
        return f"point {sample_id}"


class Pixels(Points):
    """The same as bytes."""

    sample_spec = SampleSpec.of((NUM_FEATURES,), "uint8")

    def read(self, sample_id: int) -> tuple[np.ndarray, int]:
        point, label = super().read(sample_id)
        return (128 + 30 * point).clip(0, 255).astype(np.uint8), label


class Uneven(Pixels):
    """Four of six points are of class 0; the dataset lists its labels."""

    def __init__(self, num_samples: int, broken: int) -> None:
        super().__init__(num_samples, broken)
        self.labels = np.array([0, 0, 1, 0, 2, 0])[np.arange(num_samples) % 6]
        self._labels = self.labels


class Handle(Points):
    """Points behind a handle that works in one thread only, like a connection of SQLite."""

    def __init__(self) -> None:
        super().__init__(60, 0)
        self._thread = threading.get_ident()

    def read(self, sample_id: int) -> tuple[np.ndarray, int]:
        if threading.get_ident() != self._thread:
            raise ValueError("the handle was made in another thread")
        return super().read(sample_id)


class Lines(Points):
    """Points whose numbers are repeated 1 to 40 times; they say so if asked."""

    sample_spec = SampleSpec.of((None,), "float64", 40 * 8 * NUM_FEATURES)

    def __init__(self, num_samples: int, broken: int, declared: bool) -> None:
        super().__init__(num_samples, broken)
        self.lengths = np.random.default_rng(2).integers(1, 41, num_samples)
        if declared:
            self.sizes = self.lengths

    def read(self, sample_id: int) -> tuple[np.ndarray, int]:
        point, label = super().read(sample_id)
        return np.repeat(point, self.lengths[sample_id]), label


class Toy(EmulatedModel):
    """Softmax regression with a hook."""

    def __init__(self, hook: str) -> None:
        super().__init__(NUM_FEATURES, 3)
        self._hook, self._num_steps = hook, 0
        self._call()

    def loss_and_gradient(self, parameters: Any, x: Any, y: Any) -> Any:
        self._num_steps += 1
        rank = getattr(RANK, "number", -1)
        TRAINED.extend((self._hook, rank, float(point[0])) for point in x)
        given = self._call()
        loss, correct, gradients = super().loss_and_gradient(parameters, x, y)
        return (loss if given is None else given), correct, gradients

    def _call(self) -> float | None:
        """Call the hook; its result takes the place of the loss."""
        return HOOKS[self._hook](self._num_steps) if self._hook else None


def arrays() -> tuple[np.ndarray, np.ndarray]:
    """The same points as a pair of arrays."""
    dataset = Points(60, broken=0)
    return dataset._points, dataset._labels


def points(num_samples: int = 60, broken: int = 0) -> Points:
    return Points(num_samples, broken)


def in_file(path: str, is_identified: bool = True) -> Points:
    """As many points as the file says."""
    with open(path, encoding="utf-8") as file:
        found = Points(int(file.read()), 0)
    if is_identified:
        found.fingerprint = f"{len(found)} points"  # type: ignore[attr-defined]
    return found


def behind_handle() -> Handle:
    return Handle()


def opened_by(hook: str) -> Points:
    """Points; the hook is called with 0 when they are opened."""
    HOOKS[hook](0)
    return Points(60, 0)


def pixels(num_samples: int = 60, broken: int = 0) -> Pixels:
    return Pixels(num_samples, broken)


def uneven(num_samples: int = 60, broken: int = 0) -> Uneven:
    return Uneven(num_samples, broken)


def lines(num_samples: int = 60, broken: int = 0, declared: bool = False) -> Lines:
    return Lines(num_samples, broken, declared)


def toy(input_shape: Any, num_classes: int, hook: str = "") -> Toy:
    return Toy(hook)


class Noisy:
    """An operation of `augment` that draws; it cannot use a sample whose first number is `refuses`."""

    def __init__(self, spread: float = 1.0, refuses: float | None = None) -> None:
        self._spread, self._refuses = spread, refuses

    def apply(self, sample: Any, rng: Any) -> Any:
        if sample.flat[0] == self._refuses:
            raise ValueError("no such number")
        noise = rng.normal(0.0, self._spread, sample.shape)
        return (sample + noise).clip(0, 255).astype(sample.dtype)


def falling(step: int, steps_per_epoch: int, first: float = 1.0) -> float:
    """A learning rate of one's own."""
    return first / (1 + step / steps_per_epoch)


def negative(step: int, steps_per_epoch: int) -> float:
    """One that is wrong from the third step on."""
    return 0.1 if step < 2 else -1.0


ENDS: list[Any] = []
"""The arguments of `record`: name, epoch, metrics, a weight, and the rank."""


def record(end: Any, note: str = "") -> None:
    """A callback that remembers."""
    kernel = end.weights["softmax/kernel"]
    ENDS.append((end.name, end.epoch, dict(end.metrics), kernel, getattr(RANK, "number", -1), note))


def call(end: Any, hook: str) -> None:
    """A callback that calls a hook."""
    HOOKS[hook](end.epoch)


class Stubborn:
    """A callback that raises in an epoch."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch

    def __call__(self, end: Any) -> None:
        if end.epoch == self._epoch:
            raise RuntimeError("no room for my plot")
