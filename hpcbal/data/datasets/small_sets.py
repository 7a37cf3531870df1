"""Small datasets that come with scikit-learn, as one array in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
