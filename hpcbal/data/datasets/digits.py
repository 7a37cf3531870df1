"""Scanned handwritten digits, 1,797 images of 8x8 pixels, from scikit-learn's wheel."""

from __future__ import annotations

import numpy as np

from hpcbal.data.datasets.in_memory import InMemoryDataset
from hpcbal.errors import DataError


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
