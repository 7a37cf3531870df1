"""Read the weights of a file that Keras wrote, without Keras: `.keras` and `.weights.h5`."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import InputError

_IN_ARCHIVE = "model.weights.h5"
_VARS = "vars"
_OPTIMIZER = "optimizer"


def read_keras_file(path: Path) -> list[tuple[str, tuple[NDArray[Any], ...]]]:
    """The layers of a model with their arrays, by path: names of the models that hold a layer, and its own.

    The outermost model has the path "". Keras numbers the arrays of a layer, in the order of its variables.

    Raises:
        InputError: if the file cannot be read, is no such file, or has no names of layers (Keras before 3.6
            wrote none).
    """
    try:
        if path.suffix == ".keras":
            with zipfile.ZipFile(path) as archive:
                content: Any = io.BytesIO(archive.read(_IN_ARCHIVE))
        else:
            content = path
        with h5py.File(content, "r", locking=False) as root:
            layers: list[tuple[str, tuple[NDArray[Any], ...]]] = []
            _collect(root, "", layers, is_root=True)
    except FileNotFoundError as error:
        raise InputError(f"{path}: there is no such file") from error
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise InputError(f"{path}: it is not a whole file of Keras 3 ({error})") from error
    if not any(arrays for _, arrays in layers):
        raise InputError(
            f"{path}: it names no layer with weights; save the model again with Keras 3.6 or later"
        )
    return layers


def _collect(
    group: h5py.Group, prefix: str, layers: list[tuple[str, tuple[NDArray[Any], ...]]], *, is_root: bool
) -> None:
    """Collect the layers of a group. One without a name is a list of layers, as Keras writes them."""
    own = group.get(_VARS)
    name = own.attrs.get("name") if isinstance(own, h5py.Group) else None
    path = prefix
    if not is_root and name is not None:
        path = f"{prefix}/{name}" if prefix else str(name)
    if isinstance(own, h5py.Group) and (is_root or name is not None):
        numbers = sorted((key for key in own if key.isdecimal()), key=int)
        layers.append((path, tuple(np.asarray(own[number][()]) for number in numbers)))
    for key, item in group.items():
        if isinstance(item, h5py.Group) and key != _VARS and not (is_root and key == _OPTIMIZER):
            _collect(item, path, layers, is_root=False)
