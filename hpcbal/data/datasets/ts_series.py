"""Time series: those of the UEA and UCR archives in .ts files, and generated ones of unequal length."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.datasets.arguments import path_of
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.errors import DataError
from hpcbal.policies.samples.chronica import generated_sizes

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


Series = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _File:
    """The content of one .ts file: series of shape (length, channels), and classes as indices of `names`."""

    path: Path
    series: list[Series]
    labels: list[int]
    names: tuple[str, ...]


class TsSeries:
    """Series of one or two .ts files in memory.

    Attributes:
        num_classes: number of class labels that the header lists.
        class_names: these labels.
        sample_spec: (length, channels) float32; the length is None if it differs.
        label_spec: one class.
        labels: the class of each sample, shape (num_samples,).
        sizes: length of each series, shape (num_samples,).
        validation_ids: the samples of the second file, or None.
        fingerprint: digest of series and labels.
    """

    def __init__(self, train: _File, test: _File | None) -> None:
        """See `ts_series`."""
        files = [train] if test is None else [train, test]
        self._series = [series for file in files for series in file.series]
        self._where = [(file.path, index) for file in files for index in range(len(file.series))]
        self.labels = np.array([label for file in files for label in file.labels], np.int64)
        self.sizes = np.array([len(series) for series in self._series], np.float64)
        self.class_names = train.names
        self.num_classes = len(train.names)
        self.label_spec = LabelSpec()
        self.validation_ids = None if test is None else range(len(train.series), len(self._series))
        channels = self._series[0].shape[1]
        length = int(self.sizes[0]) if len(set(self.sizes.tolist())) == 1 else None
        largest = int(self.sizes.max()) * channels * self._series[0].itemsize
        self.sample_spec = SampleSpec.of((length, channels), "float32", largest)
        digest = hashlib.sha256(self.labels.astype("<i8").tobytes())
        for series in self._series:
            digest.update(repr(series.shape).encode() + series.astype("<f4").tobytes())
        self.fingerprint = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._series)

    def read(self, sample_id: int) -> tuple[Series, int]:
        """One series, shape (length, channels), and its class."""
        return self._series[sample_id], int(self.labels[sample_id])

    def describe(self, sample_id: int) -> str:
        """File and row."""
        path, index = self._where[sample_id]
        return f"{path}[{index}]"


def ts_series(train: str, test: str | None = None) -> TsSeries:
    """Classified series, of equal or unequal length, with one or more channels.

    Args:
        train: a .ts file; a relative path starts at the current directory.
        test: a second one, for validation; null: `data.validation_fraction` of the first.

    Raises:
        DataError: if a file does not exist or is not as its header says, or the two do not fit together.

    Source: the format is that of https://www.timeseriesclassification.com.
    """
    files = [_read(path_of("ts_series", "train", train))]
    if test is not None:
        files.append(_read(path_of("ts_series", "test", test)))
    for file in files[1:]:
        if (sorted(file.names), file.series[0].shape[1]) != (
            sorted(files[0].names),
            files[0].series[0].shape[1],
        ):
            raise DataError(
                f"ts_series: {file.path} has {file.series[0].shape[1]} channels and classes "
                f"{', '.join(file.names)}, {files[0].path} has {files[0].series[0].shape[1]} and "
                f"{', '.join(files[0].names)}; allowed: the same"
            )
        file.labels[:] = [files[0].names.index(file.names[label]) for label in file.labels]
    return TsSeries(files[0], files[1] if len(files) > 1 else None)


def _read(path: Path) -> _File:
    if not path.is_file():
        where = f" (from {Path.cwd()})" if not path.is_absolute() else ""
        raise DataError(f"ts_series: {path}{where} is not a file; set data.args to .ts files")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"ts_series: {path} cannot be read: {error}") from error
    names: tuple[str, ...] = ()
    series: list[Series] = []
    labels: list[int] = []
    is_data = False
    for number, line in enumerate(lines, start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if not is_data:
            keyword, *values = line.split()
            is_data = keyword.lower() == "@data"
            if keyword.lower() == "@classlabel" and values and values[0].lower() == "true":
                names = tuple(values[1:])
            if keyword.lower() == "@timestamps" and values and values[0].lower() == "true":
                raise DataError(f"ts_series: {path}:{number}: time stamps, allowed: @timeStamps false")
            continue
        if not names:
            raise DataError(f"ts_series: {path}: no class labels, allowed: a line '@classLabel true ...'")
        *dimensions, name = line.split(":")
        series.append(_parse(f"ts_series: {path}:{number}", dimensions))
        if name not in names:
            raise DataError(
                f"ts_series: {path}:{number}: got class {name!r:.40}, allowed: {', '.join(names)}"
            )
        labels.append(names.index(name))
    if not series or len({each.shape[1] for each in series}) > 1:
        raise DataError(f"ts_series: {path}: allowed: at least one series, all with as many channels")
    return _File(path, series, labels, names)


def _parse(where: str, dimensions: list[str]) -> Series:
    """The series of one line, shape (length, channels); each channel is a list of numbers with commas."""
    try:
        channels = [np.array(text.split(","), np.float32) for text in dimensions]
    except ValueError as error:
        raise DataError(f"{where}: {error}; allowed: numbers, without missing values ('?')") from error
    if not channels or len({len(channel) for channel in channels}) > 1:
        raise DataError(f"{where}: got channels of unequal length, allowed: one length for each series")
    return np.stack(channels, axis=1)
