"""Load a replica from its DNN's checkpoint; refuse one whose model has changed since."""

from __future__ import annotations

from pathlib import Path

from hpcbal.checkpoint import TrainingState, read_checkpoint
from hpcbal.config import DnnConfig
from hpcbal.errors import CheckpointError, InputError
from hpcbal.runtime.group.callbacks import check_callbacks
from hpcbal.runtime.group.initialising import initialise
from hpcbal.runtime.group.saved_arrays import NOT_OF_REPLICA
from hpcbal.runtime.rank.context import RankContext
from hpcbal.runtime.rank.data import StreamFacts
from hpcbal.training.backend import Backend, Replica


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
