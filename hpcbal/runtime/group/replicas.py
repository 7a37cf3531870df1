"""Keep replicas between rounds, and load them from checkpoints or initial weights."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcbal.checkpoint.reader import read_checkpoint
from hpcbal.checkpoint.state import TrainingState, digest_of
from hpcbal.checkpoint.weights import read_keras_file, read_weights
from hpcbal.checkpoint.writer import FileIdentity
from hpcbal.config import DnnConfig
from hpcbal.config.schema.dnn import InitConfig
from hpcbal.data.labels import in_words
from hpcbal.errors import CheckpointError, HpcbalError, InputError
from hpcbal.events.history import EpochRecord, Position
from hpcbal.processes import say
from hpcbal.runtime.group.callbacks import check_callbacks
from hpcbal.runtime.rank.context import RankContext
from hpcbal.runtime.rank.data import StreamFacts
from hpcbal.runtime.wire.protocol import COMPILING
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.training.backend import Backend, Replica
from hpcbal.training.frameworks import import_framework
from hpcbal.training.initial_weights import (
    SourceLayer,
    initial_weights,
    layers_of_checkpoint,
    without_prefix,
)
from hpcbal.training.weights import WEIGHTS, with_weights

SUMS_NAME = "epoch/sums"
"""The sums behind the metrics so far, in a checkpoint that was written inside a pass."""

PARTITION_PREFIX = "partition/"
"""Prefix of the arrays that say which rank holds which samples of partitioned data."""

EVIDENCE_NAME = "epoch/evidence"
"""The evidence of the validation samples so far, in such a checkpoint; see `GroupEvidence`."""

NOT_OF_REPLICA = (SUMS_NAME, EVIDENCE_NAME, PARTITION_PREFIX)


def load_replica(replica: Replica, state: TrainingState, directory: Path) -> None:
    """Load the arrays of the replica.

    Args:
        replica: built by the code that there is now.
        state: the checkpoint.
        directory: where it lies, for the message.

    Raises:
        InputError: if they do not fit: the model is another one now.
    """
    arrays = {name: array for name, array in state.arrays.items() if not name.startswith(NOT_OF_REPLICA)}
    try:
        replica.load_state(arrays)
    except CheckpointError as error:
        raise InputError(
            f"{directory}: the model changed since this checkpoint (epoch {state.epoch}): {error}; restore "
            "the code that it was trained with, or start anew with another output.dir"
        ) from error


def build_replica(backend: Backend, dnn: DnnConfig, facts: StreamFacts, seed: int) -> Replica:
    """Build the replica of a DNN for the run's data.

    Raises:
        InputError: if the model, the loss or a metric is wrong, or classes cannot be counted for balanced
            weights.
    """
    if dnn.class_weights == "balanced":
        dnn = dnn.model_copy(update={"class_weights": _balanced(dnn.name, facts)})
    return backend.build(
        dnn,
        facts.spec.sample,
        facts.num_classes,
        seed,
        facts.on_device,
        facts.spec.label,
        facts.sample_weights,
    )


def _balanced(name: str, facts: StreamFacts) -> dict[int, float]:
    """Weights inversely to the number of training samples of a class, whose mean over samples is 1."""
    counts = facts.class_counts
    if counts is None:
        raise InputError(
            f"DNN {name}: class_weights: got 'balanced', but the dataset does not list its labels, allowed: "
            "{class: weight}, or a dataset with the attribute 'labels'"
        )
    num_used = int((counts > 0).sum())
    return {
        number: float(counts.sum() / (num_used * count)) for number, count in enumerate(counts) if count > 0
    }


def check_model(context: RankContext, facts: StreamFacts, backend: Backend, dnn: DnnConfig) -> None:
    """Build the model of a DNN, and check that it fits the DNN's checkpoint or, without one, `init`.

    Not collective.

    Raises:
        InputError: if the model is wrong, or does not fit.
    """
    check_callbacks(dnn)
    if dnn.compile:  # the scheduler does not listen yet
        context.liveness.note(f"{COMPILING}{dnn.name}")
        say(f"hpcbal: {COMPILING}{dnn.name} (torch.compile), which may take minutes")
    replica = build_replica(backend, dnn, facts, context.config.seed)
    try:
        directory = context.dnn_directory(dnn.name)
        state, _ = read_checkpoint(directory)
        if state is not None:
            load_replica(replica, state, directory)
        else:
            initialise(replica, dnn, facts.class_names)
    finally:
        replica.close()


@dataclass(frozen=True, slots=True)
class WeightsOrigin:
    """The weights from which a DNN started.

    Attributes:
        path: the file, absolute: a later start may have another current directory.
        digest: SHA-256 of what was read, hexadecimal.
        which: for people: the epoch of a run's weights; empty for a file of Keras.
        layers: paths of the layers that got its weights.
        warnings: for people: files of the other run that are damaged, so that other weights were taken.
    """

    path: Path
    digest: str
    which: str
    layers: tuple[str, ...]
    warnings: tuple[str, ...]


def initialise(replica: Replica, dnn: DnnConfig, class_names: Sequence[str] = ()) -> WeightsOrigin | None:
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
        read = _read(dnn.init)
    except HpcbalError as error:
        raise InputError(f"DNN {dnn.name}: init: {error}") from error
    own, path, trained_on = replica.state(), read.path, read.class_names
    try:
        found = initial_weights(replica.layers(), own, read.layers, dnn.init.layers, dnn.init.skip)
    except InputError as error:
        raise InputError(f"DNN {dnn.name}: {path}: {error}") from error
    last = next((layer.path for layer in reversed(replica.layers()) if layer.weights), None)
    if trained_on and class_names and trained_on != tuple(class_names) and last in found.layers:
        raise InputError(
            f"DNN {dnn.name}: {path}: was trained on the classes {in_words(trained_on)}, but the data have "
            f"{in_words(class_names)} (in this order), so outputs of its last layer mean other classes; let "
            f"that layer keep its random weights: init.skip: [{last}]"
        )
    replica.load_state(with_weights(own, found.arrays))
    return WeightsOrigin(path, read.digest, read.which, found.layers, read.warnings)


@dataclass(frozen=True, slots=True)
class _Source:
    """The contents of the file that `init` names, as in `WeightsOrigin`, and names of its classes, if any."""

    path: Path
    digest: str
    layers: Sequence[SourceLayer]
    which: str = ""
    class_names: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def _read(init: InitConfig) -> _Source:
    path = init.path
    if init.is_keras_file:
        before = _identities(path)
        layers = [SourceLayer(name, arrays) for name, arrays in read_keras_file(path)]
        return _Source(path, _digest_of_same(path, before), layers)
    if init.is_torch_file:
        import_framework("torch", f"reading {path}")
        from hpcbal.training.torch.files import read_state_dict

        before = _identities(path)
        arrays = {f"{WEIGHTS}{name}": array for name, array in read_state_dict(path, init.prefix).items()}
        return _Source(path, _digest_of_same(path, before), layers_of_checkpoint(arrays))
    if not path.is_dir():
        raise InputError(f"{path}: there is no such directory, allowed: the output directory of a run")
    assert init.dnn is not None, "checked with the configuration"
    folder = RunDirectory(path).job(init.dnn)
    before = _identities(*folder.glob("*.h5"))  # a run that still trains replaces its files
    weights, warnings = read_weights(folder, init.weights)
    named = {name.removeprefix(WEIGHTS): array for name, array in weights.arrays.items()}
    chosen = without_prefix(weights.path, named, init.prefix)
    return _Source(
        weights.path,
        _digest_of_same(weights.path, before),
        layers_of_checkpoint({f"{WEIGHTS}{name}": array for name, array in chosen.items()}),
        weights.in_words(),
        weights.class_names,
        tuple(warnings),
    )


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


# Small networks all fit; a large network is dropped when the next one is built, to free its device memory.
CAPACITY_BYTES = 512 * 2**20


@dataclass(frozen=True, slots=True)
class Moment:
    """A state of a DNN: after `epoch` epochs, and at stream position `position` if inside the next epoch."""

    epoch: int
    position: Position | None


UNTRAINED = Moment(epoch=0, position=None)
BUILT = Moment(epoch=-1, position=None)
"""A new replica whose initial weights have not been loaded yet."""


@dataclass
class _Entry:
    replica: Replica
    moment: Moment | None
    history: tuple[EpochRecord, ...]


class ReplicaCache:
    """This rank's replicas by DNN; evicts the least recently used when they exceed a number of bytes."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def get(self, dnn_id: str) -> Replica | None:
        entry = self._entries.get(dnn_id)
        if entry is None:
            return None
        self._entries.move_to_end(dnn_id)
        return entry.replica

    def moment(self, dnn_id: str) -> Moment | None:
        """The state that the replica holds; None if unknown."""
        entry = self._entries.get(dnn_id)
        return None if entry is None else entry.moment

    def history(self, dnn_id: str) -> tuple[EpochRecord, ...]:
        """The records of the epochs that led to the replica's state."""
        return self._entries[dnn_id].history

    def put(self, dnn_id: str, replica: Replica) -> None:
        """Keep the new `replica` and evict others beyond the capacity; the newest always stays."""
        self._entries[dnn_id] = _Entry(replica, BUILT, ())
        self._entries.move_to_end(dnn_id)
        while len(self._entries) > 1 and self._num_bytes() > CAPACITY_BYTES:
            _, oldest = self._entries.popitem(last=False)
            oldest.replica.close()

    def mark(self, dnn_id: str, moment: Moment | None, history: tuple[EpochRecord, ...] = ()) -> None:
        """Record which state the replica of `dnn_id` holds now; None while it is being trained."""
        entry = self._entries[dnn_id]
        entry.moment, entry.history = moment, history

    def drop(self, dnn_id: str) -> None:
        entry = self._entries.pop(dnn_id, None)
        if entry is not None:
            entry.replica.close()

    def clear(self) -> None:
        for dnn_id in list(self._entries):
            self.drop(dnn_id)

    def _num_bytes(self) -> int:
        return sum(entry.replica.num_bytes for entry in self._entries.values())
