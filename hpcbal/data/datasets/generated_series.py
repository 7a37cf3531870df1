"""Series of unequal length with a chosen imbalance, generated when they are read."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.errors import DataError
from hpcbal.policies.samples.drawing import generated_sizes

NOISE = 0.5
"""Standard deviation of the noise; the signal has amplitude 1."""


class GeneratedSeries:
    """Noisy oscillations; the class of a series is its frequency, whatever its length.

    Attributes:
        num_classes: number of frequencies.
        sample_spec: (length, channels) float32.
        label_spec: one class.
        labels: the class of each sample, shape (num_samples,).
        sizes: length of each sample, shape (num_samples,).
        fingerprint: the arguments.
    """

    def __init__(self, num_samples: int, dif: float, num_classes: int, num_channels: int, seed: int) -> None:
        """See `generated_series` for the arguments."""
        random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 1])))
        self._seed = seed
        self._num_channels = num_channels
        self.num_classes = num_classes
        self.labels = random.integers(0, num_classes, num_samples)
        self.sizes = np.maximum(np.rint(generated_sizes(num_samples, dif, seed)), 1.0)
        longest = int(self.sizes.max())
        self.sample_spec = SampleSpec.of((None, num_channels), "float32", longest * num_channels * 4)
        self.label_spec = LabelSpec()
        self.fingerprint = repr((num_samples, dif, num_classes, num_channels, seed))

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, sample_id: int) -> tuple[NDArray[np.float32], int]:
        """One series, shape (length, channels), and its class."""
        random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self._seed, 2, sample_id])))
        length, label = int(self.sizes[sample_id]), int(self.labels[sample_id])
        steps = np.arange(length)[:, np.newaxis]
        phases = random.uniform(0.0, 2 * np.pi, self._num_channels)
        frequency = np.pi * (label + 1) / (self.num_classes + 1)  # of a step; below that of Nyquist
        series = np.sin(frequency * steps + phases) + random.normal(0.0, NOISE, (length, self._num_channels))
        return series.astype(np.float32), label

    def describe(self, sample_id: int) -> str:
        """The number of the series and its length."""
        return f"generated series {sample_id} of length {self.sizes[sample_id]:g}"


def generated_series(
    num_samples: int = 600,
    dif: float = 32.0,
    num_classes: int = 4,
    num_channels: int = 3,
    seed: int = 0,
) -> GeneratedSeries:
    """Series whose lengths are spread around 45, for experiments and tests.

    Args:
        num_samples: >= 1.
        dif: data imbalance factor, the standard deviation of the lengths before they are kept positive, >= 0;
            0: all have length 45.
        num_classes: >= 2.
        num_channels: numbers per time step, >= 1.
        seed: >= 0; of the data, not of the run.

    Raises:
        DataError: if an argument is out of range.

    Source: the lengths are those of [CHRONICA] Sec. VI-A.
    """
    if not (num_samples >= 1 and 0.0 <= dif < 1e6 and num_classes >= 2 and num_channels >= 1 and seed >= 0):
        raise DataError(
            f"generated_series: got num_samples {num_samples}, dif {dif}, num_classes {num_classes}, "
            f"num_channels {num_channels}, seed {seed}; allowed: num_samples >= 1, 0 <= dif < 1e6, "
            "num_classes >= 2, num_channels >= 1, seed >= 0"
        )
    return GeneratedSeries(num_samples, dif, num_classes, num_channels, seed)
