"""Save a group's DNN: when its checkpoint is due, and the weights of each epoch that is its best."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hpcbal.checkpoint.background import BackgroundWriter
from hpcbal.checkpoint.best import BEST_BY, BEST_EPOCH, CLASSES, EPOCH_FACTS, ONLY_BEST, holds_best
from hpcbal.checkpoint.state import TrainingState
from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.control.progress import best, evaluate
from hpcbal.events.ensemble import CheckpointWritten
from hpcbal.events.history import EpochFacts, EpochRecord, Position
from hpcbal.runtime.group.member import GroupMember
from hpcbal.runtime.wire.protocol import WRITING, Noted
from hpcbal.telemetry.ledger.codec import plain_facts
from hpcbal.telemetry.ledger.dnn_lines import BestKeptLine
from hpcbal.telemetry.streams.slices import CHECKPOINT
from hpcbal.training.backend import Replica

BEST_WAITS_S = 1.0
"""A best epoch waits this long for the order after its pass, because the order may ask for a checkpoint.

Its weights are part of that checkpoint, and are not written twice."""


class Saving:
    """Submits checkpoints and best weights of one DNN to the writer; on the group's master only.

    Args:
        member: the master's membership.
        writer: writes in the background.
        history: the completed epochs; the group appends to it.
        other_arrays: returns the arrays of a checkpoint that are not the replica's, given the replica, and
            whether the checkpoint is written inside a pass.
        report: sends an event to the scheduler.
    """

    def __init__(
        self,
        member: GroupMember,
        writer: BackgroundWriter,
        history: Sequence[EpochRecord],
        other_arrays: Callable[[Replica, bool], Mapping[str, np.ndarray]],
        report: Callable[[CheckpointWritten], None],
    ) -> None:
        self._member = member
        self._context = member.context
        self._writer = writer
        self._history = history
        self._other_arrays = other_arrays
        self._report = report
        self._directory = member.context.dnn_directory(member.dnn.name)
        self._rule = member.dnn.stop.rule()
        self._keep = member.context.config.checkpoint.keep
        self._last_s = time.monotonic()
        self._num_steps = 0  # of training, since the last checkpoint
        self._held_s = 0.0  # how long the last submission kept the group from training
        self._best_since_s: float | None = None  # the last epoch is the best one, and not submitted yet
        self._epoch_facts: EpochFacts | None = None  # of the last epoch, if it ended here

    def end_epoch(self, facts: EpochFacts) -> None:
        """Take the epoch that has just been added to the history, which may be the best one so far."""
        self._epoch_facts = facts
        is_best = best(self._rule, self._history).epoch == self._history[-1].epoch
        self._best_since_s = time.monotonic() if is_best and self._keep != "last" else None

    def wait(self, replica: Replica, position: Position) -> None:
        """Save a best epoch for which no order has come; call this while waiting for the order."""
        if self._best_since_s is not None and time.monotonic() - self._best_since_s >= BEST_WAITS_S:
            self._save_best(replica, position)

    def proceed(self, replica: Replica, position: Position, *, checkpoint: bool) -> None:
        """Save what is due between two passes.

        Args:
            checkpoint: whether the order asks for a checkpoint.
        """
        if checkpoint and self._is_due():
            self._save(replica, position, inside_pass=False)
        elif self._best_since_s is not None:
            self._save_best(replica, position)

    def count_step(self) -> None:
        """Count a training step, before it begins and after what is due by the steps before was saved."""
        self._num_steps += 1

    @property
    def is_due_by_steps(self) -> bool:
        """Whether `checkpoint.interval_steps` training steps have passed since the last checkpoint."""
        most = self._context.config.checkpoint.interval_steps
        return most is not None and self._num_steps >= most

    def save_if_due(self, replica: Replica, position: Position) -> None:
        """Save inside a pass."""
        if self._is_due():
            self._save(replica, position, inside_pass=True)

    def leave(self, replica: Replica, position: Position, *, inside_pass: bool) -> None:
        """Save durably, and report it."""
        began = time.monotonic()
        self._context.announce(f"{WRITING}{self._member.dnn.name}")
        self._save(replica, position, inside_pass=inside_pass, final=True)
        self._writer.wait()
        self._held_s = time.monotonic() - began
        self._context.slices.add(CHECKPOINT, began, time.monotonic())
        self.report_written()

    def report_written(self) -> None:
        """Report what the writer has finished.

        Raises:
            OutputError, CheckpointError: if a write has failed, as on a full disk; it ends the whole run.
        """
        for done in self._writer.poll():
            if done.error is not None:
                raise done.error
            if done.last:
                costs = done.seconds, self._held_s
                self._report(
                    CheckpointWritten(done.name, done.epoch, done.position, *costs, done.only_progress)
                )
            if done.best:
                value = self._history[done.epoch - 1].metrics[self._rule.monitor]
                costs = (0.0, 0.0) if done.last else (done.seconds, self._held_s)
                line = BestKeptLine(done.name, done.epoch, self._rule.monitor, value, *costs)
                self._context.channel.send(SCHEDULER_RANK, Noted(line))

    # ---- parts -------------------------------------------------------------------------------

    def _is_due(self) -> bool:
        is_time = time.monotonic() - self._last_s >= self._context.config.checkpoint.interval_s
        return is_time or self.is_due_by_steps

    def _save(self, replica: Replica, position: Position, *, inside_pass: bool, final: bool = False) -> None:
        """Submit a checkpoint, also as the best weights if its epoch is the best one and not saved yet."""
        if final and self._keeps_only_best(inside_pass):
            if self._best_since_s is not None:
                self._save_best(replica, position)
            self._writer.wait()
            self.report_written()  # raises if the best weights could not be written
            state = self._state(position, {}, {ONLY_BEST: True})
            if holds_best(self._directory, state, best(self._rule, self._history).epoch):
                self._writer.submit(self._directory, state, final=True)
                return
        began = time.monotonic()
        is_best = self._best_since_s is not None
        arrays = {**replica.state(), **self._other_arrays(replica, inside_pass)}
        state = self._state(position, arrays, {BEST_BY: self._rule.monitor} if is_best else {})
        self._writer.submit(self._directory, state, final=final, best=is_best)
        self._last_s, self._num_steps = time.monotonic(), 0
        self._best_since_s = None
        if not final:  # otherwise the caller waits for the disk and records the whole time
            self._record(began)

    def _save_best(self, replica: Replica, position: Position) -> None:
        """Submit the weights of the last epoch as the best ones."""
        began = time.monotonic()
        state = self._state(position, replica.weights(), {BEST_BY: self._rule.monitor})
        self._writer.submit(self._directory, state, last=False, best=True)
        self._best_since_s = None
        self._record(began)

    def _record(self, began_s: float) -> None:
        self._held_s = time.monotonic() - began_s
        self._context.slices.add(CHECKPOINT, began_s, time.monotonic())

    def _keeps_only_best(self, inside_pass: bool) -> bool:
        """Whether the DNN is done and its last weights need not stay; they do if no epoch is the best."""
        if self._keep != "best" or inside_pass or evaluate(self._rule, self._history) is None:
            return False
        return best(self._rule, self._history).epoch > 0

    def _state(
        self, position: Position, arrays: Mapping[str, np.ndarray], meta: Mapping[str, object]
    ) -> TrainingState:
        known = {**meta}
        if self._keep != "last":
            known[BEST_EPOCH] = best(self._rule, self._history).epoch
        if names := self._member.facts.class_names:
            known[CLASSES] = list(names)
        if self._epoch_facts is not None:
            known[EPOCH_FACTS] = plain_facts(self._epoch_facts)
        return TrainingState(
            name=self._member.dnn.name,
            epoch=len(self._history),
            position=position,
            history=tuple(self._history),
            arrays=arrays,
            fingerprint=self._member.facts.fingerprint,
            meta=known,
        )
