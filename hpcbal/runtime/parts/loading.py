"""Get every rank of a group its part of the data: dealt, or as the checkpoint has it, and read once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.comm.group_comm import GroupComm
from hpcbal.comm.mpi_group_comm import duplicate
from hpcbal.data.bad_sample import BadSample
from hpcbal.data.held_samples import HeldSamples
from hpcbal.data.source import SampleSource, open_source
from hpcbal.errors import DataError
from hpcbal.policies.partitioning import (
    NO_PART,
    Partition,
    begun_anew,
    deal_parts,
    with_all_samples,
    without_samples,
)
from hpcbal.runtime.balance.balancer import Balancer
from hpcbal.runtime.group.member import GroupMember
from hpcbal.runtime.parts.batches import PartBatches
from hpcbal.runtime.parts.part import Parts, partition_of_arrays
from hpcbal.runtime.rank.context import RankContext
from hpcbal.runtime.rank.data import StreamFacts
from hpcbal.runtime.wire.protocol import DataLoading
from hpcbal.training.arrays import Array

log = logging.getLogger(__name__)

NO_LABEL = -1
_ALIKE = 2
"""Even parts and even shares of validation differ by one each: together that is not worth telling."""


class PartLoader:
    """What this rank holds of partitioned data, from round to round.

    The dataset is opened while samples are read, and let go of afterwards: of a dataset that lies in memory
    as a whole, nothing stays but the part.

    Attributes:
        last: where the last round ended, or what a load began with that was stopped; None: nothing is known.
    """

    def __init__(self, context: RankContext, facts: StreamFacts) -> None:
        self._context = context
        self._facts = facts
        self._held: HeldSamples | None = None
        self.last: Partition | None = None

    def load(
        self,
        member: GroupMember,
        saved: Mapping[str, Array],
        balancer: Balancer,
        suspended: Callable[[], bool],
    ) -> PartBatches | None:
        """This rank's part, ready to be drawn from; collective over the group.

        Args:
            saved: arrays of the DNN's checkpoint; without a partition there, that of the last round is used.
            balancer: splits the steps.
            suspended: whether this rank has been told to stop; asked before each sample.

        Returns: None, on all ranks, if a rank was told to stop before it had all.
        Raises:
            GroupFailed: on all ranks: a rank could not open the data, or there are fewer usable samples than
                ranks. Where too many are broken for the run to go on, that is told by their number instead.
        """
        config, spec, comm = self._context.config, self._facts.spec, member.comm
        source = member.on_all_ranks("opening the data", self._open)
        known = member.on_all_ranks("reading the parts", lambda: self._known(saved, spec.num_train))
        begun_with = partition = _of_master(comm, known, spec.num_train)
        if partition is None or partition.num_parts != comm.size:
            partition = self._deal(member, source, partition, suspended)
        if partition is None:
            self._stopped(begun_with)
            return None
        loaded = self._load_part(member, source, partition, suspended)
        if loaded is not None and self._should_deal_again(partition, source, loaded.unusable):
            if member.is_master:
                log.warning("broken samples leave a part empty: the data is dealt anew")
            partition = self._deal(member, source, partition, suspended, loaded.unusable[source.train_ids])
            loaded = None if partition is None else self._load_part(member, source, partition, suspended)
        if partition is None or loaded is None:
            self._stopped(begun_with)
            return None
        unusable = loaded.unusable
        if not self._too_many(unusable):  # else nobody draws from the parts
            partition = member.on_all_ranks(
                "leaving broken samples out", partial(_only_usable, partition, unusable[source.train_ids])
            )
        self.last, held = partition, loaded.held
        log.info("holds %d samples, %.1f MB", len(held.ids), held.num_bytes / 1e6)
        gap = config.data.max_traversal_gap
        parts = Parts(duplicate(comm), held, source.train_ids, partition, gap, config.seed)
        return PartBatches(
            spec,
            source.over(held),
            parts,
            balancer,
            member.dnn.batch_size,
            config.seed,
            ~unusable[source.validation_ids],
            int(np.count_nonzero(unusable)),
            [(error.sample_id, error.where, error.reason) for error in loaded.bad],
        )

    def keep(self, parts: Parts) -> None:
        """Remember where a round ended, for the next one."""
        self.last = parts.performed

    def _stopped(self, begun_with: Partition | None) -> None:
        """Loading has ended early, on all ranks: the next one begins where this one did."""
        log.info("told to stop while data was loaded")
        self.last = begun_with

    def _open(self) -> SampleSource:
        self._context.announce("opening the data")
        source = open_source(self._context.config)
        known, name = self._facts.fingerprint, self._context.config.data.dataset
        if source.fingerprint != known:
            raise DataError(
                f"data.dataset {name} is not the same on all ranks: fingerprints {known} and "
                f"{source.fingerprint}; put it where all nodes see it"
            )
        if self._context.config.data.partition == "by_class" and not source.label_spec.is_class:
            raise DataError("data.partition: got 'by_class', but labels here are no classes; use 'random'")
        return source

    def _deal(
        self,
        member: GroupMember,
        source: SampleSource,
        before: Partition | None,
        suspended: Callable[[], bool],
        unusable: NDArray[np.bool_] | None = None,
    ) -> Partition | None:
        """Parts for this group's ranks; collective.

        Args:
            before: parts that do not fit: of a group of another size, or without a usable sample.
            unusable: training samples known to be broken, by number.

        Returns: None, on all ranks, if a rank was told to stop while labels were read.
        """
        config, comm = self._context.config, member.comm
        if before is not None and before.num_parts != comm.size and member.is_master:
            log.warning("the data had %d parts and is dealt anew to %d GPUs", before.num_parts, comm.size)
        rule, number = config.data.partition, 0 if before is None else before.number + 1
        labels = None
        if rule == "by_class":
            self._tell(member, f"the labels of {source.num_train} samples are read, to deal them by class")
            own = member.on_all_ranks("reading labels", lambda: self._own_labels(source, comm, suspended))
            if not _all_have(comm, own is not None):
                return None
            assert own is not None
            labels = comm.all_reduce(own, "sum")
            broken = labels == NO_LABEL
            unusable = broken if unusable is None else unusable | broken
        return member.on_all_ranks(
            "dealing the data",
            lambda: deal_parts(source.num_train, comm.size, rule, config.seed, labels, number, unusable),
        )

    def _own_labels(
        self, source: SampleSource, comm: GroupComm, suspended: Callable[[], bool]
    ) -> NDArray[np.int64] | None:
        """Classes of the training samples that this rank is to read for all, 0 elsewhere.

        Returns: with `NO_LABEL` for broken ones; None if this rank is told to stop meanwhile.
        """
        labels = np.zeros(source.num_train, np.int64)
        for index in range(comm.rank, source.num_train, comm.size):
            self._poll()
            if suspended():
                return None
            try:
                labels[index] = int(source.read(int(source.train_ids[index]))[1])
            except BadSample:
                labels[index] = NO_LABEL
        return labels

    def _load_part(
        self,
        member: GroupMember,
        source: SampleSource,
        partition: Partition,
        suspended: Callable[[], bool],
    ) -> _Loaded | None:
        """Read this rank's part, and what nobody has of late; collective.

        Returns: None, on all ranks, if a rank was told to stop before it had all.
        """
        comm, dealt = member.comm, with_all_samples(partition)
        train = source.train_ids[dealt.members(comm.rank)]
        validation = source.validation_ids[comm.rank :: comm.size]

        def of_this_part() -> HeldSamples:
            held = self._held or HeldSamples(source.dataset)
            for sample_id in np.setdiff1d(held.ids, np.concatenate([train, validation])).tolist():
                held.drop(sample_id)
            return held

        held = member.on_all_ranks("finding what is held of a part", of_this_part)
        missing = _of_all(comm, len(train) + len(validation) - len(held.ids))
        if max(missing):
            self._tell(member, told_reading(missing))
        read = member.on_all_ranks(
            "loading a part of the data",
            lambda: self._read(source, held, train, validation, suspended),
        )
        if not _all_have(comm, read is not None):
            return None
        assert read is not None
        self._held = held
        return _Loaded(held, read, _unusable(comm, source, read))

    def _too_many(self, unusable: NDArray[np.bool_]) -> bool:
        """Whether more samples are broken than the user allows, which ends the run."""
        return bool(np.count_nonzero(unusable) > self._facts.max_broken)

    def _should_deal_again(
        self, partition: Partition, source: SampleSource, unusable: NDArray[np.bool_]
    ) -> bool:
        """Whether broken samples leave a part empty, though others would do for all."""
        sizes = _usable_sizes(with_all_samples(partition), unusable[source.train_ids])
        return min(sizes) == 0 and sum(sizes) >= len(sizes) and not self._too_many(unusable)

    def _known(self, saved: Mapping[str, Array], num_train: int) -> Partition | None:
        return partition_of_arrays(saved, num_train) or self.last

    def _read(
        self,
        source: SampleSource,
        held: HeldSamples,
        train: NDArray[np.int64],
        validation: NDArray[np.int64],
        suspended: Callable[[], bool],
    ) -> list[BadSample] | None:
        """Hold this rank's part, and its share of the validation samples; read only what is not there yet.

        Args:
            held: gets them.
            train, validation: ids of what this rank is to hold.

        Returns: those that cannot be read or preprocessed; None if this rank is told to stop meanwhile.
        """
        bad: list[BadSample] = []
        samples = source.over(held)
        for index, sample_id in enumerate([*train.tolist(), *validation.tolist()]):
            self._poll()
            if suspended():
                return None
            if sample_id in held:
                continue
            try:
                held.put(sample_id, *source.read(sample_id))
                samples.sample(sample_id, 0, index < len(train))  # shows whether it can be preprocessed
            except BadSample as error:
                held.drop(sample_id)
                bad.append(BadSample(sample_id, source.dataset.describe(sample_id), error.reason))
        return bad

    def _tell(self, member: GroupMember, what: str) -> None:
        """Let the user know what is going on; once, by the master."""
        if member.is_master:
            self._context.channel.send(SCHEDULER_RANK, DataLoading(member.dnn.name, what))

    def _poll(self) -> None:
        self._context.keep_in_touch("loading a part of the data")


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What a rank holds, what it could not read, and which samples no rank could, by id."""

    held: HeldSamples
    bad: list[BadSample]
    unusable: NDArray[np.bool_]


def _usable_sizes(partition: Partition, unusable: NDArray[np.bool_]) -> list[int]:
    """Sizes of the parts without these training samples."""
    usable = partition.owner[~unusable & (partition.owner != NO_PART)]
    return [int(size) for size in np.bincount(usable, minlength=partition.num_parts)]


def _only_usable(before: Partition, unusable: NDArray[np.bool_]) -> Partition:
    """The parts of `before` without these training samples, and with those that have been mended since.

    Raises: DataError: a part would be empty.
    """
    dealt = with_all_samples(before)
    sizes = _usable_sizes(dealt, unusable)
    if min(sizes) == 0:
        raise DataError(
            f"{sum(sizes)} of {len(unusable)} training samples can be used, and parts of partitioned data "
            f"would hold {sizes} of them; allowed: at least one on each GPU. Mend the broken samples, or use "
            "fewer GPUs (schedule.max_gpus_per_dnn)"
        )
    partition = without_samples(dealt, unusable)
    if np.array_equal(partition.owner, before.owner):
        return before
    return begun_anew(before, partition.owner)


def _of_master(comm: GroupComm, mine: Partition | None, num_samples: int) -> Partition | None:
    """What the master knows of the parts; collective. A rank whose process is new knows nothing."""
    head = np.array([0, 0] if mine is None else [mine.num_parts, mine.number], np.int64)
    comm.broadcast(head)
    num_parts, number = head.tolist()
    if not num_parts:
        return None
    owner, drawn = np.empty(num_samples, np.int32), np.empty(num_parts, np.int64)
    if comm.rank == 0:
        assert mine is not None
        owner[:], drawn[:] = mine.owner, mine.drawn
    comm.broadcast(owner)
    comm.broadcast(drawn)
    return Partition.of(owner, drawn.tolist(), number)


def told_reading(missing: Sequence[int]) -> str:
    """What the user hears of reading parts.

    Args:
        missing: samples that each GPU of the group is to read, not all 0.
    """
    least, most = min(missing), max(missing)
    if len(missing) == 1:
        return f"about {most} samples are read and kept on its GPU"
    number = f"about {most}" if most - least <= _ALIKE else f"{least} to {most}"
    return f"{number} samples are read and kept on each of {len(missing)} GPUs"


def _of_all(comm: GroupComm, mine: int) -> list[int]:
    """The numbers of all ranks; collective."""
    return [int(number) for number in comm.all_gather(np.array(mine, np.int64))]


def _all_have(comm: GroupComm, mine: bool) -> bool:
    """Whether it is true of all ranks; collective."""
    return bool(comm.all_reduce(np.array(mine, np.uint8), "min"))


def _unusable(comm: GroupComm, source: SampleSource, bad: list[BadSample]) -> NDArray[np.bool_]:
    """Which samples of the dataset are broken, by id; collective."""
    mine = np.zeros(len(source.dataset), np.uint8)
    mine[[error.sample_id for error in bad]] = 1
    return comm.all_reduce(mine, "max").astype(np.bool_)
