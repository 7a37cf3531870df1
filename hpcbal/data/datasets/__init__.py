"""Datasets that come with hpcbal; `hpcbal.data` re-exports them under their short names."""

from __future__ import annotations

from hpcbal.data.datasets.hdf5 import hdf5
from hpcbal.data.datasets.image_folder import image_folder
from hpcbal.data.datasets.map_style import map_style
from hpcbal.data.datasets.parquet_shards import parquet_shards
from hpcbal.data.datasets.small_sets import diabetes, digit_scenes, digits, fashion_mnist
from hpcbal.data.datasets.tar_shards import tar_shards
from hpcbal.data.datasets.tfrecord_shards import tfrecord_shards
from hpcbal.data.datasets.ts_series import generated_series, ts_series

__all__ = [
    "diabetes",
    "digit_scenes",
    "digits",
    "fashion_mnist",
    "generated_series",
    "hdf5",
    "image_folder",
    "map_style",
    "parquet_shards",
    "tar_shards",
    "tfrecord_shards",
    "ts_series",
]

_INDEXED = ("image_folder", "parquet_shards", "tar_shards", "tfrecord_shards")


def keeps_index(path: str) -> bool:
    """Whether the dataset of an import path keeps an index, so that only the first opening is slow."""
    module, _, name = path.partition(":")
    return module.split(".")[0] == __name__.split(".")[0] and name in _INDEXED
