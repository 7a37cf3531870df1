"""Datasets that come with hpcbal; `hpcbal.data` re-exports them under their short names."""

from __future__ import annotations

from hpcbal.data.datasets.digits import digits
from hpcbal.data.datasets.fashion_mnist import fashion_mnist
from hpcbal.data.datasets.hdf5 import hdf5
from hpcbal.data.datasets.image_folder import image_folder

__all__ = ["digits", "fashion_mnist", "hdf5", "image_folder"]
