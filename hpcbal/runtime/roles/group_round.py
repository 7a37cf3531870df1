"""One rank's round in a trainer group: passes, reports and checkpoints, until it is asked to leave."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hpcbal.checkpoint.background import BackgroundWriter
from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.comm.backoff import Backoff
from hpcbal.comm.channel import Message
from hpcbal.config.schema.prune import COMMITTEE
from hpcbal.data.augmentation import Augmentation
from hpcbal.dataplane.maker import BatchMaker
from hpcbal.dataplane.reader import StreamReader
from hpcbal.events.ensemble import DnnFailed, EpochDone, Event, GroupLeft, RateMeasured, RoundPlan
from hpcbal.events.history import EpochRecord, Position
from hpcbal.runtime.balance.balancer import Balancer
from hpcbal.runtime.balance.dealing import make_dealer
from hpcbal.runtime.balance.gpu import NO_DEVICE, DeviceUse
from hpcbal.runtime.group.augmenting import AugmentedBatches
from hpcbal.runtime.group.callbacks import Callbacks, LearningRates
from hpcbal.runtime.group.epoch import EpochSums, PassResult, PassRunner
from hpcbal.runtime.group.evidence import GroupEvidence
from hpcbal.runtime.group.feeding import Batches, Feeder, StreamBatches
from hpcbal.runtime.group.member import GroupMember
from hpcbal.runtime.group.own_batches import OwnBatches
from hpcbal.runtime.group.replicas import EVIDENCE_NAME, SUMS_NAME, Moment
from hpcbal.runtime.group.saving import Saving
from hpcbal.runtime.wire.protocol import Happened, Leave, PreprocessorReport, Proceed, Suspend
from hpcbal.telemetry.streams.slices import StepTrace
from hpcbal.training.backend import Replica
from hpcbal.training.groups import USER_ERRORS, GroupFailed, detail_of

if TYPE_CHECKING:
    from hpcbal.runtime.partitions.loading import PartLoader

log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.05
"""Seconds between two polls for messages; a poll takes 0.2 ms, because MPI progresses all transports."""


class GroupRound:
    """One rank's round; the master also reports and writes checkpoints.

    Args:
        member: this rank's membership in the group.
        feed: the shared stream, positioned at the DNN's start before `run` is called; or what makes batches
            on this rank.
        plan: the plan of the round; only this DNN's part is used.
        serial: serial number of the groups; orders with another serial are ignored.
        writer: writes checkpoints in the background; used by the master only.
        executor: fetches batches ahead, see `Feeder`.
        balancer: splits the steps over the group; closed when the round ends.
        loader: loads this rank's part if data is partitioned; `feed` is not used then.
        device: samples how busy this rank's GPU is.
    """

    def __init__(
        self,
        member: GroupMember,
        feed: StreamReader | BatchMaker,
        plan: RoundPlan,
        serial: int,
        writer: BackgroundWriter,
        executor: Executor | None,
        balancer: Balancer,
        loader: PartLoader | None = None,
        device: DeviceUse = NO_DEVICE,
    ) -> None:
        self._device = device
        self._member = member
        self._context = member.context
        self._facts = member.facts
        self._feed = feed
        self._plan = plan
        self._serial = serial
        self._writer = writer
        self._executor = executor
        self._balancer = balancer
        self._loader = loader
        self._suspend = False
        self._is_leaving = False
        self._orders: list[Message] = []
        self._history: list[EpochRecord] = []
        self._sums = EpochSums()
        self._evidence: GroupEvidence | None = None
        self._saving = Saving(member, writer, self._history, self._other_arrays, self._report)
        self._callbacks = Callbacks(member.dnn)
        self._parts = member.facts.parts_of(member.dnn, member.context.config.seed)
        self._rates = LearningRates(member.dnn, self._parts.num_train)
        self._last_look_s = 0.0
        self._measures = member.dnn.name in plan.measures
        self._load_s = 0.0  # how long it took to build or load the network
        self._start_s: float | None = None  # the same, until it is reported

    def run(self) -> None:
        """Train until asked to leave or suspend; a group's failure is reported as DnnFailed, not raised."""
        member, name = self._member, self._member.dnn.name
        try:
            self._train()
        except GroupFailed as error:
            failure = member.failure_for_people(error)
            member.cache.drop(name)
            log.error("%s failed: %s", name, failure)
            self._report(DnnFailed(name, failure.cause, failure.detail, member.world_rank(failure)))
        finally:
            self._balancer.close()
            if isinstance(self._feed, StreamReader):
                self._feed.end()
            self._context.send_slices()
            self._report_preprocessing()
        if self._loader is not None:
            self._loader.close()  # collective; an error on this rank alone ends the job instead
        if member.is_master:
            self._writer.wait()  # a write from before the failure may still be running
            self._saving.report_written()
            self._report(GroupLeft(name))

    # ---- the round ---------------------------------------------------------------------------

    def _train(self) -> None:
        member, name = self._member, self._member.dnn.name
        start = self._plan.start[name]
        epochs = self._plan.epochs[name]
        inside = start if 0 < start.offset < self._facts.spec.num_positions else None
        began = time.monotonic()
        with self._context.slices.during("load", f"load {name}"):
            loaded = member.load_together(epochs, inside)
        self._load_s = self._start_s = time.monotonic() - began
        replica = loaded.replica
        replica.take_skipped_steps()  # those of measuring its rate
        self._history.extend(loaded.history)
        if loaded.sums is not None:
            self._sums = EpochSums.from_array(loaded.sums)
        watched = self._facts.watched
        prune = self._context.config.prune
        if watched is not None and (prune.rule != COMMITTEE or prune.covers(name)):
            self._evidence = GroupEvidence(watched, name, loaded.saved.get(EVIDENCE_NAME))
        batches = self._open_batches(loaded.saved)
        if batches is None:  # all ranks were asked to stop while loading data
            self._leave(replica, start, inside_pass=inside is not None)
            return
        if self._loader is not None and self._loader.num_bad > self._facts.max_broken:
            self._wait_for_order(start)  # the scheduler gets the report too, and suspends all groups
            self._leave(replica, start, inside_pass=inside is not None)
            return
        self._balancer.start()
        feeder = Feeder(
            self._facts.spec,
            batches,
            member.dnn.batch_size,
            self._executor,
            poll=lambda: self._context.keep_in_touch(f"waiting for data of {name}"),
            parts=self._parts,
        )
        runner = PassRunner(
            feeder,
            batches,
            self._facts.spec.num_positions,
            # A sample that is drawn again and again is one broken sample: only the scheduler counts them.
            math.inf if self._context.config.data.sampling == "balanced" else self._facts.max_broken,
            replica,
            member.collective,
            suspended=lambda: self._suspend,
            between_steps=lambda position: self._before_step(replica, position),
            trace=lambda pass_index: StepTrace(self._context.slices, name, pass_index),
            set_rate=lambda at: self._rates.set_rate(replica, self._history, at),
            evidence=self._evidence,
        )
        if start.offset >= self._facts.spec.num_positions:
            order = self._wait_for_order(start)  # this pass was done before the interruption
            if not isinstance(order, Proceed):
                self._leave(replica, start)
                return
            start = Position(order.pass_index)
        while True:
            member.cache.mark(name, None)  # its state changes while it trains
            result = runner.run(start, self._sums)
            if result.too_many_bad:
                self._report_preprocessing()
                self._wait_for_order(result.position)  # the scheduler gets the report and suspends all groups
            if not result.complete:
                self._leave(replica, result.position, inside_pass=result.position.offset > 0)
                return
            self._end_epoch(replica, result)
            order = self._wait_for_order(result.position, replica)
            if not isinstance(order, Proceed):
                self._leave(replica, result.position)
                return
            if member.is_master:
                self._saving.proceed(replica, result.position, checkpoint=order.checkpoint)
            start = Position(order.pass_index)

    def _open_batches(self, saved: Mapping[str, np.ndarray]) -> Batches | None:
        """Open the source of this rank's batches, with the DNN's `augment`; collective.

        Returns: the batches; None, on all ranks, if the group was asked to stop meanwhile.
        """
        member, spec, seed = self._member, self._facts.spec, self._context.config.seed
        if not member.dnn.augment:
            return self._open_shared(saved)
        augmentation = member.on_all_ranks(
            "making the operations of augment", lambda: Augmentation(member.dnn, spec.sample, seed)
        )
        batches = self._open_shared(saved)
        return None if batches is None else AugmentedBatches(batches, augmentation, spec)

    def _open_shared(self, saved: Mapping[str, np.ndarray]) -> Batches | None:
        """Do so with samples as all DNNs see them; if data is partitioned, load this rank's part."""
        member = self._member
        if self._loader is None:
            spec, size, rank = self._facts.spec, member.dnn.batch_size, member.collective.rank
            dealer = make_dealer(
                self._context.config.balance,
                is_sized=spec.is_sized,
                num_ranks=member.collective.size,
                mean_size=self._facts.mean_size,
            )
            repeats = bool(member.dnn.augment) and self._context.config.data.sampling == "balanced"
            of_rank = size, rank, self._balancer, dealer
            if isinstance(self._feed, BatchMaker):
                return OwnBatches(spec, self._feed, *of_rank, repeats=repeats)
            most = self._parts.most_positions(size)
            return StreamBatches(spec, self._feed, *of_rank, repeats=repeats, most_positions=most)
        with self._context.slices.during("load", "load data"):
            batches = self._loader.load(member, saved, self._balancer, self._is_suspended)
        if batches is not None:
            self._report_preprocessing()
        return batches

    @property
    def _counts_work(self) -> bool:
        """Whether steps count work beside samples; parts that are not chosen by size count samples only."""
        return self._facts.spec.is_sized and (self._loader is None or self._loader.chooses_by_size)

    def _end_epoch(self, replica: Replica, result: PassResult) -> None:
        metrics, pass_index = self._metrics(replica), result.position.pass_index
        self._sums = EpochSums()
        record = EpochRecord(len(self._history) + 1, pass_index, metrics, result.seconds)
        self._history.append(record)
        self._note_skipped(replica, record.epoch)
        if self._callbacks:
            self._member.on_all_ranks("a callback", lambda: self._call_back(replica, record))
        self._report_preprocessing()
        busy_s = result.seconds - result.wait_s
        collective = self._member.collective
        ranks = result.own.by_rank(collective, is_sized=self._counts_work) if collective.size > 1 else None
        split = {**self._balancer.take_facts(), "device_busy": self._device.take()}
        if self._loader is not None:
            split["partition"] = self._loader.facts()
        evidence = None if self._evidence is None else self._evidence.take()
        facts = result.facts(ranks, split, self._rates.of_last_epoch(self._history), evidence)
        self._saving.end_epoch(facts)
        offered_slot = self._offered_slot()
        name = self._member.dnn.name
        if self._measures and result.samples_per_s is not None:
            self._measures = False
            self._report(RateMeasured(name, 1, result.samples_per_s, self._load_s + result.first_s))
        start_s = None if self._start_s is None else self._start_s + result.first_s
        self._start_s = None
        done = EpochDone(name, pass_index, metrics, result.seconds, busy_s, offered_slot, facts)
        self._report(replace(done, start_s=start_s))

    def _note_skipped(self, replica: Replica, epoch: int) -> None:
        skipped = replica.take_skipped_steps()  # on every rank: they skip the same steps
        if skipped and self._member.is_master:
            log.info(
                "%s: %d steps of epoch %d changed nothing: gradients overflowed in float16, and the scale "
                "of the loss was halved each time",
                self._member.dnn.name,
                skipped,
                epoch,
            )

    def _metrics(self, replica: Replica) -> dict[str, float]:
        """The metrics of the epoch; all ranks compute them from the same sums, so they fail together."""
        try:
            return self._sums.metrics(replica)
        except USER_ERRORS as error:
            raise GroupFailed("error", detail_of(error), local=True) from error

    def _call_back(self, replica: Replica, record: EpochRecord) -> None:
        """The master calls the user's callbacks; the other ranks wait for it, and fail with it."""
        if self._member.is_master:
            self._callbacks.end_epoch(replica, record, self._context.announce)

    def _leave(self, replica: Replica, position: Position, *, inside_pass: bool = False) -> None:
        """Write a durable checkpoint, then report it."""
        moment = Moment(len(self._history), position if inside_pass else None)
        self._member.cache.mark(self._member.dnn.name, moment, tuple(self._history))
        if self._loader is not None:
            self._loader.keep()
        if self._member.is_master:
            self._saving.leave(replica, position, inside_pass=inside_pass)

    def _other_arrays(self, replica: Replica, inside_pass: bool) -> Mapping[str, np.ndarray]:
        """Return the arrays of a checkpoint that are not the replica's."""
        arrays: dict[str, np.ndarray] = {}
        if inside_pass:
            arrays[SUMS_NAME] = self._sums.to_array(replica.num_states)
            if self._evidence is not None:
                arrays[EVIDENCE_NAME] = self._evidence.array()
        if self._loader is not None:
            arrays |= self._loader.arrays()
        return arrays

    # ---- messages ----------------------------------------------------------------------------

    def _before_step(self, replica: Replica, position: Position) -> None:
        """Handle messages, and write a checkpoint inside the pass if one is due."""
        self._look_around(replica, position)
        if position.offset < self._facts.spec.num_train:
            self._saving.count_step()

    def _look_around(self, replica: Replica, position: Position) -> None:
        is_due_by_steps = self._saving.is_due_by_steps
        if not is_due_by_steps and time.monotonic() - self._last_look_s < LOOK_INTERVAL_S:
            return
        self._last_look_s = time.monotonic()
        self._attend()
        saves_inside = self._context.config.checkpoint.interval_s > 0.0 or is_due_by_steps
        saves_inside &= self._member.is_master
        if saves_inside and position.offset > 0 and replica.broken is None:
            self._saving.save_if_due(replica, position)

    def _attend(self) -> None:
        """Take messages, send heartbeats, and report the checkpoints that have been written."""
        self._take_messages()
        self._device.look()
        self._context.keep_in_touch(f"training {self._member.dnn.name}")
        if self._member.is_master:
            self._saving.report_written()

    def _offered_slot(self) -> int | None:
        """The slot without which the group would be faster, if its master knows one now."""
        rank = self._balancer.remove
        if rank is None:
            return None
        name = self._member.dnn.name
        return next(group.slots for group in self._plan.groups if group.dnn_id == name)[rank]

    def _is_suspended(self) -> bool:
        """Whether this rank has been asked to stop; polls for messages every `LOOK_INTERVAL_S`."""
        if time.monotonic() - self._last_look_s >= LOOK_INTERVAL_S:
            self._last_look_s = time.monotonic()
            self._take_messages()
        return self._suspend

    def _take_messages(self) -> None:
        """Take the messages to these groups, up to the order to leave.

        What comes after that order, such as the next groups or Shutdown, is for the trainer. It may be here
        already: the master reports that the group has left without waiting for this rank.
        """
        while not self._is_leaving and (found := self._context.channel.receive()) is not None:
            message = found[1]
            self._is_leaving = isinstance(message, Leave | Suspend) and message.serial == self._serial
            if getattr(message, "serial", None) != self._serial:
                log.debug("dropped %r: it does not belong to these groups (%d)", message, self._serial)
            elif isinstance(message, Suspend):
                self._suspend = True
            else:
                self._orders.append(message)

    def _wait_for_order(
        self, position: Position, replica: Replica | None = None
    ) -> Proceed | Leave | Suspend:
        """Wait for the order after a pass; a Suspend that arrived during its last step counts as one.

        Args:
            replica: its weights are saved if this pass was its best epoch and the order takes long.
        """
        backoff = Backoff.idle()
        with self._context.slices.during("wait for the others"):
            while True:
                self._attend()
                if self._orders:
                    order = self._orders.pop(0)
                    assert isinstance(order, Proceed | Leave), order
                    return order
                if self._suspend:
                    return Suspend(self._serial)
                if replica is not None and self._member.is_master:
                    self._saving.wait(replica, position)
                backoff.wait()

    def _report_preprocessing(self) -> None:
        """Report the samples that this rank has made itself, like a preprocessor."""
        maker = self._feed if isinstance(self._feed, BatchMaker) else None
        if self._loader is not None and self._loader.batches is not None:
            maker = self._loader.batches.maker
        if maker is not None:
            bad = tuple(maker.take_bad())
            self._context.channel.send(
                SCHEDULER_RANK,
                PreprocessorReport(
                    maker.samples_made,
                    maker.busy_s,
                    bad,
                    maker.num_from_cache,
                    maker.take_warning(),
                    maker.num_fetched,
                ),
            )

    def _report(self, event: Event) -> None:
        if self._member.is_master:
            self._context.channel.send(SCHEDULER_RANK, Happened(self._serial, event))
