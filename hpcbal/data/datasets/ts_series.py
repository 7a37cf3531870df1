"""Time series in the .ts files of the UEA and UCR archives."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.datasets.arguments import path_of
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.errors import DataError

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
