"""Datasets and preprocessing: numbered samples, the same in every process."""

from __future__ import annotations

from hpcbal.data.dataset import BadSample, Dataset
from hpcbal.data.datasets import (
    diabetes,
    digit_scenes,
    digits,
    fashion_mnist,
    generated_series,
    hdf5,
    image_folder,
    map_style,
    tar_shards,
    tfrecord_shards,
    ts_series,
)
from hpcbal.data.pipeline import build_operations
from hpcbal.data.source import PreprocessedSamples, open_source
from hpcbal.data.spec import LabelSpec, SampleSpec

__all__ = [
    "BadSample",
    "Dataset",
    "LabelSpec",
    "PreprocessedSamples",
    "SampleSpec",
    "build_operations",
    "diabetes",
    "digit_scenes",
    "digits",
    "fashion_mnist",
    "generated_series",
    "hdf5",
    "image_folder",
    "map_style",
    "open_source",
    "tar_shards",
    "tfrecord_shards",
    "ts_series",
]
