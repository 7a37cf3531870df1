"""The diabetes study that comes with scikit-learn: numbers to predict from numbers."""

from __future__ import annotations

import numpy as np

from hpcbal.data.datasets.in_memory import InMemoryDataset
from hpcbal.data.spec import LabelSpec
from hpcbal.errors import DataError


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
