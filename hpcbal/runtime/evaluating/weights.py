"""Read the weights of a trained DNN from its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from hpcbal.checkpoint import read_checkpoint
from hpcbal.errors import InputError
from hpcbal.runtime.evaluating.request import Which

WEIGHTS = "weights/"
"""Prefix of the arrays of a checkpoint that are weights."""


@dataclass(frozen=True, slots=True)
class KeptWeights:
    """Weights of a DNN, and which ones they are.

    Attributes:
        which: best or last.
        epoch: completed epochs, >= 0.
        fingerprint: fingerprint of the data that they were trained on.
        arrays: by their names in the checkpoint, "weights/...".
    """

    which: Which
    epoch: int
    fingerprint: str
    arrays: Mapping[str, NDArray[Any]]


def read_weights(directory: Path, which: Which | None) -> tuple[KeptWeights, list[str]]:
    """Read the weights of the DNN in `directory`; warnings for people come second.

    Args:
        directory: the DNN's directory, `dnns/<name>`.
        which: None: the best ones if they are kept, otherwise the last ones.

    Raises:
        InputError: if these weights are not kept.
        CheckpointError: if a file exists but cannot be opened.
    """
    last, warnings = read_checkpoint(directory)
    if last is None:
        raise InputError(f"{directory}: holds no whole checkpoint; train it first with 'hpcbal run'")
    if which == "best":
        raise InputError(
            f"{directory}: its best weights are not kept, only the last ones (epoch {last.epoch}); take them "
            "with --weights last"
        )
    arrays = {name: array for name, array in last.arrays.items() if name.startswith(WEIGHTS)}
    return KeptWeights("last", last.epoch, last.fingerprint, arrays), warnings
