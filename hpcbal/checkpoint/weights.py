"""Read the weights of a job for what comes after training, and those of files that Keras wrote."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
from numpy.typing import NDArray

from hpcbal.checkpoint.best import BEST_BY, BEST_EPOCH, CLASSES, ONLY_BEST, WEIGHTS, holds_best, read_best
from hpcbal.checkpoint.reader import read_checkpoint, read_progress
from hpcbal.checkpoint.state import TrainingState, has_sealed_length
from hpcbal.checkpoint.writer import CURRENT
from hpcbal.errors import CheckpointError, InputError
from hpcbal.events.history import LOSS

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


Which = Literal["best", "last"]


MOST_CHANGE, MOST_CHANGE_OF_LOSS = 1e-3, 0.02
"""By how much the same weights may change their loss, and by which part: other devices round otherwise."""


@dataclass(frozen=True, slots=True)
class KeptWeights:
    """Weights of a job, and which ones they are.

    Attributes:
        name: name of the job.
        which: best or last.
        epoch: completed epochs, >= 0. The last weights may have been saved inside the next epoch.
        metrics: of that epoch; empty before the first one.
        monitor: the metric by which they are the best; empty for the last weights.
        path: the file that was read.
        fingerprint: fingerprint of the data that they were trained on.
        arrays: by their names in the checkpoint, "weights/...".
        class_names: of the data that they were trained on; empty if these had none.
    """

    name: str
    which: Which
    epoch: int
    metrics: Mapping[str, float]
    monitor: str
    path: Path
    fingerprint: str
    arrays: Mapping[str, NDArray[Any]]
    class_names: tuple[str, ...] = ()

    def why_changed(self, loss: float) -> str | None:
        """Return a sentence if the best weights no longer have the loss that they had; None if they do.

        Code or data have changed then, although shapes and fingerprints are the same.

        Args:
            loss: of these weights, on all validation samples, now.
        """
        before = self.metrics.get(f"val_{LOSS}") if self.monitor else None
        if before is None or abs(loss - before) <= MOST_CHANGE + MOST_CHANGE_OF_LOSS * abs(before):
            return None
        return (
            f"{self.name} has a loss of {loss:.4g} on the validation samples, but had {before:.4g} when its "
            "weights were saved, so the code of its model or its data has changed: restore it, or train anew"
        )

    def in_words(self) -> str:
        """Which weights these are, for people: `best, epoch 7, val_accuracy 0.9312`."""
        text = f"{self.which}, epoch {self.epoch}"
        return f"{text}, {self.monitor} {self.metrics[self.monitor]:.4g}" if self.monitor else text


def read_weights(
    directory: str | os.PathLike[str], which: Which | None = None
) -> tuple[KeptWeights, list[str]]:
    """Read the weights of the job in `directory`.

    Args:
        directory: the job's directory, such as `dnns/<name>`.
        which: None: the best ones if they are kept, otherwise the last ones.

    Returns:
        The weights, and one warning for people per file that is damaged, or not what the checkpoint says.

    Raises:
        InputError: if these weights are not kept; the message says which ones are.
        CheckpointError: if a file exists but cannot be opened.
    """
    folder = Path(directory)
    warnings: list[str] = []
    if which != "last":
        progress, _ = read_progress(folder)
        best, path, warnings = read_best(folder, with_arrays=True, checkpoint=progress)
        if best is not None:
            best_epoch = best.epoch if progress is None else progress.meta.get(BEST_EPOCH, best.epoch)
            if best.epoch < best_epoch:
                warnings.append(
                    f"{path}: holds the weights of epoch {best.epoch}, but those of the best epoch, "
                    f"{best_epoch}, are lost"
                )
            return _weights_of(best, "best", path), warnings
    last, of_last = read_checkpoint(folder)
    warnings += of_last
    if last is None:
        trouble = f" ({'; '.join(warnings)})" if warnings else ""
        raise InputError(f"{folder}: holds no whole checkpoint{trouble}; train it first with 'hpcbal run'")
    if which == "best":
        raise InputError(
            f"{folder}: its best weights are not kept, only the last ones (epoch {last.epoch}); take them "
            "with --weights last, or train with checkpoint.keep: both or best"
        )
    if last.meta.get(ONLY_BEST) and which is None:
        trouble = f" ({'; '.join(warnings)})" if warnings else ""
        raise InputError(
            f"{folder}: the best weights, the only ones that were kept, are lost{trouble}; run the same "
            "'hpcbal run' again, which trains this DNN again"
        )
    if last.meta.get(ONLY_BEST):
        raise InputError(
            f"{folder}: its last weights (epoch {last.epoch}) are not kept, only the best ones; take them "
            "with --weights best, or train with checkpoint.keep: both or last"
        )
    return _weights_of(last, "last", folder / CURRENT), warnings


def has_trained(
    directory: str | os.PathLike[str],
    name: str,
    epoch: int,
    *,
    best_epoch: float | None = None,
    thoroughly: bool,
) -> bool:
    """Whether there is a whole checkpoint of a job, of `epoch` or a later epoch, with weights.

    Args:
        directory: the job's directory.
        name: of the job.
        epoch: number of completed epochs.
        best_epoch: the epoch whose weights `best.h5` must hold too, if thoroughly; None: any.
        thoroughly: whether to read all of the file. Otherwise a newest checkpoint counts as whole, of that
            job and of that epoch, if it has its full length, which takes no time.
    """
    try:
        if not thoroughly and has_sealed_length(Path(directory) / CURRENT):
            return True
        state, _ = read_progress(directory)
        if state is None or state.name != name or state.epoch < epoch:
            return False
        if best_epoch is not None:
            return holds_best(directory, state, best_epoch)
        return not state.meta.get(ONLY_BEST) or read_best(directory, with_arrays=False)[0] is not None
    except (OSError, CheckpointError):
        return False


def _weights_of(state: TrainingState, which: Which, path: Path) -> KeptWeights:
    return KeptWeights(
        name=state.name,
        which=which,
        epoch=state.epoch,
        metrics=state.history[-1].metrics if state.history else {},
        monitor=str(state.meta.get(BEST_BY, "")) if which == "best" else "",
        path=path,
        fingerprint=state.fingerprint,
        arrays={name: array for name, array in state.arrays.items() if name.startswith(WEIGHTS)},
        class_names=tuple(map(str, state.meta.get(CLASSES, ()))),
    )
