"""One rank's membership in a trainer group: build, load and agree with the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from hpcbal.checkpoint.reader import read_checkpoint
from hpcbal.checkpoint.writer import check_arrays
from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.comm.group_comm import GroupComm
from hpcbal.config import DnnConfig
from hpcbal.errors import CheckpointError, HpcbalError, InputError
from hpcbal.events.history import EpochRecord, Position
from hpcbal.processes import leave_if_forked
from hpcbal.runtime.group.replicas import (
    BUILT,
    NOT_OF_REPLICA,
    SUMS_NAME,
    UNTRAINED,
    Moment,
    ReplicaCache,
    build_replica,
    initialise,
    load_replica,
)
from hpcbal.runtime.rank.context import RankContext
from hpcbal.runtime.rank.data import StreamFacts
from hpcbal.runtime.wire.protocol import COMPILING, Noted
from hpcbal.telemetry.ledger.dnn_lines import InitialWeightsLine, ModelWarningLine
from hpcbal.training.backend import Backend, GradientCollective, Replica
from hpcbal.training.groups import USER_ERRORS, GroupFailed, agree, as_exception, detail_of, share_state

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A rank's state at the start of a round.

    Attributes:
        sums: the sums behind the metrics of a pass that was interrupted; None if there was no such pass.
        saved: all arrays of the checkpoint that are not the replica's; empty if no checkpoint was read.
    """

    replica: Replica
    history: tuple[EpochRecord, ...]
    sums: np.ndarray | None
    saved: Mapping[str, np.ndarray] = field(default_factory=dict)


class GroupMember:
    """This rank's part of one trainer group.

    Args:
        context: this rank's context.
        facts: facts about the data.
        dnn: the DNN that the group trains.
        comm: communicator through which the group's ranks agree.
        collective: sums gradients over the group.
        ranks: world rank of each rank of the group.
    """

    def __init__(
        self,
        context: RankContext,
        facts: StreamFacts,
        backend: Backend,
        cache: ReplicaCache,
        dnn: DnnConfig,
        comm: GroupComm,
        collective: GradientCollective,
        ranks: Sequence[int],
    ) -> None:
        self.context = context
        self.facts = facts
        self._ranks = tuple(ranks)
        self.dnn = dnn
        self.comm = comm
        self.collective = collective
        self._backend = backend
        self.cache = cache

    @property
    def is_master(self) -> bool:
        return self.comm.rank == 0

    def on_all_ranks(self, doing: str, work: Callable[[], T]) -> T:
        """Run `work` on all ranks of the group; either all succeed or all raise GroupFailed; collective."""
        result: T | None = None
        failure: Exception | None = None
        try:
            result = work()
        except USER_ERRORS as error:  # an error in a user's model must not leave the peers waiting
            if isinstance(error, InputError):  # for the log of this rank alone, with the user's traceback
                log.error("%s: %s failed: %s", self.dnn.name, doing, detail_of(error))
            else:
                log.exception("%s: %s failed", self.dnn.name, doing)
            failure = as_exception(error)
        leave_if_forked(f"the model of {self.dnn.name}")
        agree(self.comm, failure, lambda: self.context.keep_in_touch(f"waiting for others: {doing}"))
        return result  # type: ignore[return-value]

    def load_together(self, epochs: int, position: Position | None) -> Loaded:
        """Call `load` on all ranks of the group and make their replicas equal; collective.

        The master's arrays are sent only if the ranks differ, which happens when a user's model draws its
        initial weights from its own random source.
        """
        loaded = self.on_all_ranks("loading the DNN", lambda: self.load(epochs, position))
        if self.comm.size > 1 and share_state(self.comm, loaded.replica):
            log.warning("%s: the ranks held different weights; the master's were sent to all", self.dnn.name)
        return loaded

    def failure_for_people(self, error: GroupFailed) -> GroupFailed:
        """After a failed step: the failure with the detail of the rank where it happened; collective.

        What a user's model raised in the step gets the names of DNN and model, like errors of its callable.
        """
        is_of_step = error.local and error.rank < 0  # `agree` knows the rank
        if is_of_step and error.__cause__ is not None and not isinstance(error.__cause__, HpcbalError):
            who = f"DNN {self.dnn.name}: model {self.dnn.model}"
            error = GroupFailed(error.cause, f"{who}: a step failed: {error.detail}", local=True)
        try:
            agree(self.comm, error)
        except GroupFailed as detailed:
            return detailed
        return error

    def world_rank(self, error: GroupFailed) -> int | None:
        """World rank where the failure happened; None if unknown."""
        return self._ranks[error.rank] if error.rank >= 0 else None

    def build(self) -> Replica:
        """The replica of this DNN, cached or new; not collective."""
        replica = self.cache.get(self.dnn.name)
        if replica is None:
            replica = self._build_new()
        replica.resize(self.collective.size)
        return replica

    def _build_new(self) -> Replica:
        facts, seed = self.facts, self.context.config.seed
        if self.dnn.compile:
            self.context.announce(f"{COMPILING}{self.dnn.name}")
        replica = build_replica(self._backend, self.dnn, facts, seed)
        check_arrays(replica.state())  # report arrays that a checkpoint cannot hold before training starts
        self._warn(replica.warnings)
        self.cache.put(self.dnn.name, replica)
        return replica

    def _warn(self, texts: Sequence[str]) -> None:
        for text in texts:
            log.warning("%s", text)
            if self.is_master:
                self.context.channel.send(SCHEDULER_RANK, Noted(ModelWarningLine(self.dnn.name, text)))

    def _initialise(self, replica: Replica) -> None:
        """Load the weights that the DNN starts from, and report them."""
        found = initialise(replica, self.dnn, self.facts.class_names)
        self.cache.mark(self.dnn.name, UNTRAINED)
        if found is None:
            return
        taken = f"so it starts from {found.which}"
        self._warn([f"DNN {self.dnn.name}: init: {text}; {taken}" for text in found.warnings])
        log.info("%s: %d layers start from %s", self.dnn.name, len(found.layers), found.path)
        if self.is_master:
            line = InitialWeightsLine(
                self.dnn.name, str(found.path), found.digest, found.which, len(found.layers)
            )
            self.context.channel.send(SCHEDULER_RANK, Noted(line))

    def load(self, epochs: int, position: Position | None) -> Loaded:
        """Load the replica in its state after `epochs` epochs (and at `position` inside the next one).

        The checkpoint is read unless this rank's replica is in that state already; not collective.

        Raises:
            CheckpointError: if no checkpoint holds that state.
            InputError: if the model has changed since.
        """
        replica = self.build()
        name, wanted = self.dnn.name, Moment(epochs, position)
        if position is None and self.cache.moment(name) == wanted:
            return Loaded(replica, self.cache.history(name), None)
        if wanted == UNTRAINED:
            if self.cache.moment(name) != BUILT:
                self.cache.drop(name)
                replica = self.build()
            self._initialise(replica)
            return Loaded(replica, (), None)
        directory = self.context.dnn_directory(name)
        state, warnings = read_checkpoint(directory)
        for warning in warnings:
            log.warning("%s", warning)
        if state is None:
            raise CheckpointError(f"{directory}: holds no complete checkpoint, but epoch {epochs} is needed")
        held = Moment(state.epoch, state.position if SUMS_NAME in state.arrays else None)
        if held != wanted:
            raise CheckpointError(f"{directory}: holds {held}, but {wanted} is needed")
        saved = {key: value for key, value in state.arrays.items() if key.startswith(NOT_OF_REPLICA)}
        load_replica(replica, state, directory)
        return Loaded(replica, state.history, saved.get(SUMS_NAME), saved)
