"""Read some of the arrays of a checkpoint file, where one process needs a part of what others wrote."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from hpcbal.checkpoint.layout import read_array
from hpcbal.checkpoint.seal import verify
from hpcbal.checkpoint.writer import ARRAYS
from hpcbal.errors import CheckpointError


def read_groups(path: Path, groups: Iterable[str]) -> dict[str, dict[str, NDArray[Any]]]:
    """Read the arrays below some paths, such as `parameters/3`.

    Args:
        path: a file of `write_checkpoint`.
        groups: beginnings of the names of arrays, up to a slash.

    Returns:
        By group, its arrays by the rest of their names; they can be changed.

    Raises:
        CheckpointError: if the file is damaged, or lacks a group; the message does not name the file.
        OSError: if it is missing or cannot be read.
    """
    verify(path)
    found: dict[str, dict[str, NDArray[Any]]] = {}
    with h5py.File(path, "r", locking=False) as root:
        for name in groups:
            group = root.get(f"{ARRAYS}/{name}")
            if not isinstance(group, h5py.Group):
                raise CheckpointError(f"it lacks {name}")
            found[name] = _datasets(group)
    return found


def _datasets(group: h5py.Group) -> dict[str, NDArray[Any]]:
    """All arrays below a group, by path."""
    found: dict[str, NDArray[Any]] = {}

    def take(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = np.array(read_array(item))

    group.visititems(take)
    return found
