"""Small datasets in memory: those of scikit-learn, scenes made of its digits, and Fashion-MNIST."""

from __future__ import annotations

import gzip
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.datasets.arguments import path_of
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.errors import DataError


class InMemoryDataset:
    """Samples stored as rows of an array.

    Attributes:
        num_classes: number of classes, or of outputs.
        sample_spec: spec of one row.
        label_spec: spec of one label.
        labels: the label of each sample, shape (num_samples, *label shape).
        validation_ids: the set's own split, or None.
        fingerprint: digest of samples and labels.
    """

    def __init__(
        self,
        name: str,
        samples: NDArray[Any],
        labels: NDArray[Any],
        validation_ids: Sequence[int] | range | None = None,
        label_spec: LabelSpec | None = None,
        num_classes: int | None = None,
    ) -> None:
        """Use the arrays as they are, without a copy.

        Args:
            name: name for messages.
            samples: (num_samples, ...).
            labels: (num_samples, *label shape); by default integers >= 0, the classes.
            validation_ids: ids of the validation samples.
            label_spec: spec of one label; None: one class.
            num_classes: None: the largest label + 1.

        Raises:
            DataError: if the numbers of samples and labels differ.
        """
        if len(samples) != len(labels):
            raise DataError(f"{name}: got {len(samples)} samples and {len(labels)} labels")
        self._name = name
        self._samples = samples
        self.labels = labels
        self._labels: Any = labels.tolist() if label_spec is None else labels
        self.num_classes = int(labels.max()) + 1 if num_classes is None else num_classes
        self.sample_spec = SampleSpec.of(samples.shape[1:], samples.dtype.name)
        self.label_spec = LabelSpec() if label_spec is None else label_spec
        self.validation_ids = validation_ids
        digest = hashlib.sha256(np.ascontiguousarray(samples).data)
        digest.update(labels.astype("<i8" if label_spec is None else labels.dtype).tobytes())
        self.fingerprint = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._labels)

    def read(self, sample_id: int) -> tuple[NDArray[Any], Any]:
        """Return a view of one row, and its label."""
        return self._samples[sample_id], self._labels[sample_id]

    def describe(self, sample_id: int) -> str:
        """The set's name and the row."""
        return f"{self._name}[{sample_id}]"


def diabetes() -> InMemoryDataset:
    """442 patients: ten measurements each, and the progression of the disease after a year.

    Samples are float32 of shape (10,), centred and scaled. A label is one number, float32: the progression
    less its mean of 152, in units of its standard deviation of 77.

    Raises:
        DataError: if scikit-learn is not installed.

    Source: B. Efron, T. Hastie, I. Johnstone and R. Tibshirani, "Least angle regression", Annals of
        Statistics 32, 2004; through scikit-learn.
    """
    try:
        from sklearn.datasets import load_diabetes
    except ImportError as error:
        raise DataError(
            f"data.dataset hpcbal.data:diabetes: needs scikit-learn ({error}); pip install 'hpcbal[data]'"
        ) from None
    bunch = load_diabetes()
    samples = (bunch.data / bunch.data.std(axis=0)).astype(np.float32)
    labels = ((bunch.target - bunch.target.mean()) / bunch.target.std()).astype(np.float32)
    return InMemoryDataset("diabetes", samples, labels, label_spec=LabelSpec((), "float32"), num_classes=1)


def digits() -> InMemoryDataset:
    """The optical recognition of handwritten digits, in `data.dataset: "hpcbal.data:digits"`.

    Images are (8, 8, 1) uint8; ink values 0..16 are scaled to 0..255, as in other images. 10 classes.

    Raises:
        DataError: if scikit-learn is not installed.

    Source: E. Alpaydin and C. Kaynak, UCI Machine Learning Repository, 1998 (its test set).
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError(
            f"data.dataset hpcbal.data:digits: needs scikit-learn ({error}); pip install 'hpcbal[data]'"
        ) from None
    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[:, :, :, np.newaxis]
    return InMemoryDataset("digits", images, bunch.target)


DEBIAN_PATH = "/usr/share/datasets/fashion-mnist"

_PARTS = ("train", "t10k")


def fashion_mnist(path: str = DEBIAN_PATH) -> InMemoryDataset:
    """The 60,000 training images, and the 10,000 test images as validation samples.

    Images are (28, 28, 1) uint8, 10 classes. `data.validation_fraction` is not used. MNIST and similar sets
    have files with the same names and format, and can also be read.

    Args:
        path: directory with {train,t10k}-images-idx3-ubyte[.gz] and -labels-idx1-ubyte[.gz]; a relative path
            starts at the current directory.

    Raises:
        DataError: if files are missing or damaged.

    Source: H. Xiao, K. Rasul and R. Vollgraf, arXiv:1708.07747, 2017.
    """
    directory = path_of("fashion_mnist", "path", path)
    images, labels = [], []
    for part in _PARTS:
        images.append(_read_idx(directory, f"{part}-images-idx3-ubyte", num_axes=3))
        labels.append(_read_idx(directory, f"{part}-labels-idx1-ubyte", num_axes=1))
        if len(images[-1]) != len(labels[-1]) or not len(labels[-1]):
            raise DataError(
                f"{directory}: got {len(images[-1])} images and {len(labels[-1])} labels in the "
                f"{part} files, allowed: the same number, at least 1"
            )
    if images[0].shape[1:] != images[1].shape[1:]:
        raise DataError(
            f"{directory}: training images are {images[0].shape[1:]}, test images {images[1].shape[1:]}"
        )
    num_train, num_all = len(images[0]), len(images[0]) + len(images[1])
    return InMemoryDataset(
        "fashion-mnist",
        np.concatenate(images)[:, :, :, np.newaxis],
        np.concatenate(labels),
        validation_ids=range(num_train, num_all),
    )


def _read_idx(directory: Path, name: str, num_axes: int) -> NDArray[np.uint8]:
    """Read one file of the IDX format: 0, 0, type 8 (uint8), number of axes; lengths as big-endian int32."""
    for file, opener in ((directory / f"{name}.gz", gzip.open), (directory / name, open)):
        if file.is_file():
            return _parse_idx(_read_bytes(file, opener), num_axes, file)
    raise DataError(
        f"{directory}: {name}[.gz] is missing; apt-get install dataset-fashion-mnist, or give its "
        "directory as data.args.path"
    )


def _read_bytes(file: Path, opener: Any) -> bytes:
    try:
        with opener(file, "rb") as stream:
            content: bytes = stream.read()
    except (OSError, EOFError) as error:
        raise DataError(f"{file}: cannot be read: {error}") from error
    return content


def _parse_idx(content: bytes, num_axes: int, file: Path) -> NDArray[np.uint8]:
    header_bytes = 4 + 4 * num_axes
    if len(content) < header_bytes or content[:4] != bytes((0, 0, 8, num_axes)):
        raise DataError(f"{file}: got another format, allowed: IDX with {num_axes} axes of bytes")
    shape = tuple(int(length) for length in np.frombuffer(content, ">i4", num_axes, offset=4))
    if len(content) - header_bytes != math.prod(shape):
        raise DataError(
            f"{file}: got {len(content) - header_bytes} bytes of data, but the header says "
            f"{math.prod(shape)}; the file is damaged"
        )
    return np.frombuffer(content, np.uint8, offset=header_bytes).reshape(shape)


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
