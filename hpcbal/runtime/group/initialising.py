"""Give a new replica the weights that `init` names: from a file of Keras, or from another run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcbal.checkpoint import FileIdentity, read_weights
from hpcbal.checkpoint.digest import digest_of
from hpcbal.checkpoint.keras_file import read_keras_file
from hpcbal.config import DnnConfig
from hpcbal.config.schema.initial import InitConfig
from hpcbal.data.class_names import in_words
from hpcbal.errors import HpcbalError, InputError
from hpcbal.telemetry import RunDirectory
from hpcbal.training.backend import Replica
from hpcbal.training.initial_weights import SourceLayer, initial_weights, layers_of_checkpoint


@dataclass(frozen=True, slots=True)
class Initialised:
    """What a DNN started from.

    Attributes:
        path: the file, absolute: a later start may have another current directory.
        digest: SHA-256 of what was read, hexadecimal.
        which: for people: the epoch of a run's weights; empty for a file of Keras.
        layers: paths of the layers that got its weights.
    """

    path: Path
    digest: str
    which: str
    layers: tuple[str, ...]


def initialise(replica: Replica, dnn: DnnConfig, class_names: Sequence[str] = ()) -> Initialised | None:
    """Load the weights that `dnn.init` names into a new replica; None without `init`.

    Args:
        class_names: of the data, by number; empty if these have none.

    Raises:
        InputError: if they cannot be read, or do not fit; if the last layer is among them, and its outputs
            mean other classes than those of the data.
    """
    if dnn.init is None:
        return None
    try:
        path, digest, which, source, trained_on = _read(dnn.init)
    except HpcbalError as error:
        raise InputError(f"DNN {dnn.name}: init: {error}") from error
    own = replica.state()
    try:
        found = initial_weights(replica.layers(), own, source, dnn.init.layers, dnn.init.skip)
    except InputError as error:
        raise InputError(f"DNN {dnn.name}: {path}: {error}") from error
    last = next((layer.path for layer in reversed(replica.layers()) if layer.weights), None)
    if trained_on and class_names and trained_on != tuple(class_names) and last in found.layers:
        raise InputError(
            f"DNN {dnn.name}: {path}: was trained on the classes {in_words(trained_on)}, but the data have "
            f"{in_words(class_names)} (in this order), so outputs of its last layer mean other classes; let "
            f"that layer keep its random weights: init.skip: [{last}]"
        )
    replica.load_state({**own, **found.arrays})
    return Initialised(path, digest, which, found.layers)


def _read(init: InitConfig) -> tuple[Path, str, str, Sequence[SourceLayer], tuple[str, ...]]:
    """The file, its digest, which weights it holds, its layers, and names of the classes that it knows."""
    path = init.path
    if init.is_keras_file:
        before = _identities(path)
        layers = [SourceLayer(name, arrays) for name, arrays in read_keras_file(path)]
        return path, _digest_of_same(path, before), "", layers, ()
    if not path.is_dir():
        raise InputError(f"{path}: there is no such directory, allowed: the output directory of a run")
    assert init.dnn is not None, "checked with the configuration"
    folder = RunDirectory(path).job(init.dnn)
    before = _identities(*folder.glob("*.h5"))  # a run that still trains replaces its files
    weights, _ = read_weights(folder, init.weights)
    layers = layers_of_checkpoint(weights.arrays)
    digest = _digest_of_same(weights.path, before)
    return weights.path, digest, weights.in_words(), layers, weights.class_names


def _identities(*paths: Path) -> dict[Path, FileIdentity]:
    """Which files are there."""
    return {path: FileIdentity.of(path) for path in paths if path.is_file()}


def _digest_of_same(path: Path, before: Mapping[Path, FileIdentity]) -> str:
    """The digest of a file that has just been read.

    Raises:
        InputError: if it is another file than before the reading.
    """
    digest = digest_of(path)
    if _identities(path).get(path) != before.get(path):
        raise InputError(f"{path}: was replaced while it was read; start again")
    return digest
