"""Handwritten digits on photographs, both real: which digits are there, and where is their ink?"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.errors import DataError

Wanted = Literal["digits", "ink"]

NUM_DIGITS = 10
_SCALE = 2
"""A digit of 8 x 8 pixels is shown twice as large."""

_INK_FROM = 0.5
"""Share of full ink from which on a pixel counts as ink."""


class DigitScenes:
    """Scenes put together when they are read; the same id gives the same scene in every process.

    Attributes:
        num_classes: 10 for `digits`, 2 for `ink`.
        sample_spec: (size, size, 3) uint8.
        label_spec: for `digits` float32 (10,), 1 where a digit is in the scene; for `ink` uint8 (size, size).
        fingerprint: the arguments.
    """

    def __init__(self, wanted: Wanted, num_samples: int, size: int, most_digits: int, seed: int) -> None:
        """See `digit_scenes` for the arguments."""
        from sklearn.datasets import load_digits, load_sample_images

        bunch = load_digits()
        self._digits = np.kron(bunch.images / 16.0, np.ones((1, _SCALE, _SCALE)))
        self._classes: NDArray[np.int64] = bunch.target
        self._photos: list[NDArray[np.uint8]] = load_sample_images().images
        self._wanted, self._size, self._most, self._seed = wanted, size, most_digits, seed
        self._length = num_samples
        self.num_classes = NUM_DIGITS if wanted == "digits" else 2
        self.sample_spec = SampleSpec.of((size, size, 3), "uint8")
        self.label_spec = (
            LabelSpec((NUM_DIGITS,), "float32") if wanted == "digits" else LabelSpec((size, size), "uint8")
        )
        self.fingerprint = repr((wanted, num_samples, size, most_digits, seed))

    def __len__(self) -> int:
        return self._length

    def read(self, sample_id: int) -> tuple[NDArray[np.uint8], NDArray[Any]]:
        """A part of a photograph with digits written over it, and its label."""
        random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self._seed, sample_id])))
        photo, size = self._photos[random.integers(len(self._photos))], self._size
        top, left = (int(random.integers(length - size + 1)) for length in photo.shape[:2])
        scene = photo[top : top + size, left : left + size].astype(np.float32)
        ink = np.zeros((size, size), np.float32)
        present = np.zeros(NUM_DIGITS, np.float32)
        for _ in range(int(random.integers(1, self._most + 1))):
            number = int(random.integers(len(self._digits)))
            digit = self._digits[number]
            row, column = (int(random.integers(size - len(digit) + 1)) for _ in range(2))
            place = (slice(row, row + len(digit)), slice(column, column + len(digit)))
            ink[place] = np.maximum(ink[place], digit)
            present[self._classes[number]] = 1.0
        color = 255.0 if scene.mean() < 128.0 else 0.0  # ink that can be read
        scene += ink[:, :, np.newaxis] * (color - scene)
        label = present if self._wanted == "digits" else (ink >= _INK_FROM).astype(np.uint8)
        return np.rint(scene).astype(np.uint8), label

    def describe(self, sample_id: int) -> str:
        """The set's name and the number of the scene."""
        return f"digit_scenes[{sample_id}]"


def digit_scenes(
    label: Wanted = "digits", num_samples: int = 2000, size: int = 32, most_digits: int = 3, seed: int = 0
) -> DigitScenes:
    """Make scenes of scanned digits (1,797 of them) on parts of two photographs.

    Args:
        label: `digits`: which digits are there, for networks that name several classes at once; `ink`: which
            pixels are ink, for networks that decide at each place.
        num_samples: number of scenes, >= 1.
        size: height and width in pixels, 16..427.
        most_digits: a scene has 1 to this many digits, >= 1; they may overlap.
        seed: of the scenes.

    Raises:
        DataError: if an argument is out of range, or scikit-learn is not installed.

    Source: digits of E. Alpaydin and C. Kaynak, 1998, and photographs by Tachibana and D. Cardwell, through
        scikit-learn.
    """
    if label not in get_args(Wanted):
        raise DataError(f"digit_scenes: label: got {label!r}, allowed: {', '.join(get_args(Wanted))}")
    if num_samples < 1 or most_digits < 1 or not 16 <= size <= 427:
        raise DataError(
            f"digit_scenes: got num_samples {num_samples}, most_digits {most_digits} and size {size}, "
            "allowed: >= 1, >= 1 and 16 to 427"
        )
    try:
        return DigitScenes(label, num_samples, size, most_digits, seed)
    except ImportError as error:
        raise DataError(
            f"data.dataset hpcbal.data:digit_scenes: needs scikit-learn ({error}); pip install 'hpcbal[data]'"
        ) from None
