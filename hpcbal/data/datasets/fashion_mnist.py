"""Fashion-MNIST, 70,000 images of clothing, 28x28 pixels, from Debian's package or a directory."""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.datasets.arguments import path_of
from hpcbal.data.datasets.small_sets import InMemoryDataset
from hpcbal.errors import DataError

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
