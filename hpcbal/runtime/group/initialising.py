"""Give a new replica the weights that `init` names: from a file of Keras, or from another run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcbal.checkpoint import read_weights
from hpcbal.checkpoint.keras_file import read_keras_file
from hpcbal.config import DnnConfig
from hpcbal.config.schema.initial import InitConfig
from hpcbal.errors import HpcbalError, InputError
from hpcbal.telemetry import RunDirectory
from hpcbal.training.backend import Replica
from hpcbal.training.initial_weights import SourceLayer, initial_weights, layers_of_checkpoint


@dataclass(frozen=True, slots=True)
class Initialised:
    """What a DNN started from.

    Attributes:
        path: the file.
        which: for people: the epoch of a run's weights; empty for a file of Keras.
        layers: paths of the layers that got its weights.
    """

    path: Path
    which: str
    layers: tuple[str, ...]


def initialise(replica: Replica, dnn: DnnConfig) -> Initialised | None:
    """Load the weights that `dnn.init` names into a new replica; None without `init`.

    Raises:
        InputError: if they cannot be read, or do not fit.
    """
    if dnn.init is None:
        return None
    try:
        path, which, source = _read(dnn.init)
    except HpcbalError as error:
        raise InputError(f"DNN {dnn.name}: init: {error}") from error
    own = replica.state()
    try:
        found = initial_weights(replica.layers(), own, source, dnn.init.layers, dnn.init.skip)
    except InputError as error:
        raise InputError(f"DNN {dnn.name}: {path}: {error}") from error
    replica.load_state({**own, **found.arrays})
    return Initialised(path, which, found.layers)


def _read(init: InitConfig) -> tuple[Path, str, Sequence[SourceLayer]]:
    """The file, which weights it holds, and its layers."""
    path = Path(init.source)
    if init.is_keras_file:
        return path, "", [SourceLayer(name, arrays) for name, arrays in read_keras_file(path)]
    if not path.is_dir():
        raise InputError(f"{path}: there is no such directory, allowed: the output directory of a run")
    assert init.dnn is not None, "checked with the configuration"
    weights, _ = read_weights(RunDirectory(path).job(init.dnn), init.weights)
    return weights.path, weights.in_words(), layers_of_checkpoint(weights.arrays)
