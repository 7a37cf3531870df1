"""The groups of a profiling wave: each measures its rate, and trains on until all have."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.comm.backoff import Backoff
from hpcbal.data.augmentation import Augmentation
from hpcbal.dataplane.reader import Batch, StreamReader
from hpcbal.events.ensemble import DnnFailed, Event, GroupLeft, RateMeasured
from hpcbal.policies.batching import split_evenly
from hpcbal.runtime.group.augmenting import augmented
from hpcbal.runtime.group.feeding import BatchMemory
from hpcbal.runtime.group.member import GroupMember
from hpcbal.runtime.group.replicas import UNTRAINED
from hpcbal.runtime.wire.protocol import Happened
from hpcbal.training.backend import Replica
from hpcbal.training.groups import GroupFailed
from hpcbal.training.step import evaluate_step, train_step
from hpcbal.training.weights import Arrays

log = logging.getLogger(__name__)


class Wave(Protocol):
    """Synchronises the ranks of a profiling wave; only `leave` waits, so all ranks can keep working."""

    def all_warm(self) -> bool:
        """Report that this rank has done its first step; returns whether all ranks have."""

    def all_timed(self) -> bool:
        """Report that this rank's steps have been timed; returns whether those of all ranks have."""

    def leave(self, poll: Callable[[], None]) -> None:
        """Wait until all ranks have been timed; must be the last call, also after a failure.

        Args:
            poll: called repeatedly while waiting.
        """


class GroupProfile:
    """One rank's part in measuring r_i(m): a short training run on one batch, whose weights are discarded.

    The batch is the first batch of the stream with a valid sample, and it stays in memory. The rate is that
    of compute and all-reduce, without preprocessing, while all groups of the wave train. If `augment` of the
    DNN takes longer than that, it is the rate of `augment`, which runs beside the steps.

    Args:
        member: this rank's membership in the group.
        reader: positioned at the start of the stream; closed here.
        serial: serial number of the groups.
        wave: the groups that are measured at the same time.
    """

    def __init__(self, member: GroupMember, reader: StreamReader, serial: int, wave: Wave) -> None:
        self._member = member
        self._context = member.context
        self._reader = reader
        self._serial = serial
        self._wave = wave

    def run(self) -> None:
        """Measure and report; a failure of the group is reported as DnnFailed, not raised."""
        member, name = self._member, self._member.dnn.name
        try:
            try:
                batch, total = self._first_batch()
            finally:
                self._reader.end()
            with self._context.slices.during("profile", f"profile {name}"):
                augment_s = 0.0
                if member.dnn.augment:
                    batch, augment_s = member.on_all_ranks(
                        "augmenting the first batch", lambda: self._augment(batch)
                    )
                rate, start_s = self._measure(batch, total)
                if augment_s * rate > total:
                    rate = total / augment_s
            self._report(RateMeasured(name, member.collective.size, rate, start_s))
        except GroupFailed as error:
            failure = member.failure_for_people(error)
            member.cache.drop(name)
            log.error("%s failed: %s", name, failure)
            self._report(DnnFailed(name, failure.cause, failure.detail, member.world_rank(failure)))
        self._wave.leave(self._keep_in_touch)
        self._context.send_slices()
        self._report(GroupLeft(name))

    def _first_batch(self) -> tuple[Batch, int]:
        """This rank's share of the first batch with a valid sample, and the batch's number of valid samples.

        Raises:
            GroupFailed: on all ranks, if all training samples are broken.
        """
        num_train, collective = self._member.facts.spec.num_train, self._member.collective
        for start in range(0, num_train, self._member.dnn.batch_size):
            end = min(start + self._member.dnn.batch_size, num_train)
            total = self._reader.count_valid(0, start, end)
            if total:
                shares = split_evenly(end - start, collective.size)
                first = start + sum(shares[: collective.rank])
                return self._reader.read(0, first, first + shares[collective.rank]), total
            self._reader.release(0, end)
        raise GroupFailed("error", f"all {num_train} training samples are broken", local=True)

    def _augment(self, batch: Batch) -> tuple[Batch, float]:
        """Augment this rank's share, and time it once libraries are loaded.

        Returns: the augmented batch, and seconds.
        """
        spec = self._member.facts.spec
        augmentation = Augmentation(self._member.dnn, spec.sample, self._context.config.seed)
        memory, began = BatchMemory(spec, len(batch)), 0.0
        for number in range(2):
            began = time.monotonic()
            x, error = augmented(batch, augmentation, 0, self._keep_in_touch, memory.of(number, len(batch)))
            if error is not None:
                raise error
        return replace(batch, x=x), time.monotonic() - began

    def _measure(self, batch: Batch, total: int) -> tuple[float, float]:
        """Samples/s in the last `timed_batches` of `max_batches` steps, and seconds until the first is done.

        The latter is the time to start a network: to build it, and to trace and compile its training and
        evaluation steps. All groups of the wave wait for each other after that. Groups that have been timed
        keep training, without being timed, until all groups have been timed.
        """
        member, profiling = self._member, self._context.config.schedule.profiling
        started = began = time.monotonic()
        replica = member.load_together(0, None).replica
        untrained = replica.state()
        member.cache.mark(member.dnn.name, None)
        start_s = 0.0
        for step in range(profiling.max_batches):
            if step == profiling.max_batches - profiling.timed_batches:
                began = time.monotonic()
            train_step(replica, batch, total, member.collective, suspend=False)
            if step == 0:
                evaluate_step(replica, batch, member.collective, suspend=False)
                start_s = time.monotonic() - started
                began += self._wait_until_all_are_warm()
            self._keep_in_touch()
        rate = total * profiling.timed_batches / (time.monotonic() - began)
        self._keep_busy(replica, untrained, batch, total)
        replica.load_state(untrained)
        member.cache.mark(member.dnn.name, UNTRAINED)
        return rate, start_s

    def _wait_until_all_are_warm(self) -> float:
        """Wait until all ranks of the wave are warm; returns the seconds waited."""
        began, backoff = time.monotonic(), Backoff()
        while not self._wave.all_warm():
            self._keep_in_touch()
            backoff.wait()
        return time.monotonic() - began

    def _keep_busy(self, replica: Replica, untrained: Arrays, batch: Batch, total: int) -> None:
        """Keep training until all groups of the wave are timed; restart from the initial weights repeatedly.

        Without the restarts, so many steps on one batch might make a network diverge that would train well.
        """
        num_steps, collective = 0, self._member.collective
        replica.load_state(untrained)
        while not train_step(replica, batch, total, collective, suspend=self._wave.all_timed()).suspend:
            num_steps += 1
            if num_steps % self._context.config.schedule.profiling.max_batches == 0:
                replica.load_state(untrained)
            self._keep_in_touch()

    def _keep_in_touch(self) -> None:
        self._context.keep_in_touch(f"profiling {self._member.dnn.name}")

    def _report(self, event: Event) -> None:
        if self._member.is_master:
            self._context.channel.send(SCHEDULER_RANK, Happened(self._serial, event))
