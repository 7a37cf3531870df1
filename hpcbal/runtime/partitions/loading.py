"""Load each rank's part of the data: newly dealt or as in the checkpoint, and read once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.comm.group_comm import GroupComm
from hpcbal.data.content import shortened
from hpcbal.data.dataset import BadSample, HeldSamples
from hpcbal.data.source import PreprocessedSamples, open_source
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
from hpcbal.runtime.balance.dealing import make_dealer
from hpcbal.runtime.group.member import GroupMember
from hpcbal.runtime.partitions.batches import PartBatches
from hpcbal.runtime.partitions.chronica import ChronicaBatches, ChronicaParts
from hpcbal.runtime.partitions.part import Parts, of_master, partition_arrays, partition_of_arrays
from hpcbal.runtime.rank.context import RankContext
from hpcbal.runtime.rank.data import StreamFacts
from hpcbal.runtime.wire.protocol import DataLoading
from hpcbal.training.weights import Array

log = logging.getLogger(__name__)

NO_LABEL = -1
_ALIKE = 2
"""Even training parts and even validation shares differ by one each; such a difference is not reported."""


class PartLoader:
    """Loads this rank's part of partitioned data, and keeps it from round to round.

    The dataset is opened only while samples are read. If it is held in memory as a whole, only this rank's
    part stays afterwards.

    Attributes:
        last: the partition at the end of the last round, or at the start of a load that was stopped; None if
            unknown.
        batches: of the round that runs; None before they are loaded.
        chooses_by_size: whether ranks choose samples of their parts by size ([CHRONICA]).
    """

    def __init__(self, context: RankContext, facts: StreamFacts) -> None:
        self._context = context
        self._facts = facts
        self._held: HeldSamples | None = None
        self._measured: NDArray[np.float64] | None = None  # sizes by id, if they are needed; 0: unknown
        self.last: Partition | None = None
        self.batches: PartBatches | None = None
        self.chooses_by_size = context.config.balance.samples == "chronica"

    def load(
        self,
        member: GroupMember,
        saved: Mapping[str, Array],
        balancer: Balancer,
        suspended: Callable[[], bool],
    ) -> PartBatches | None:
        """Load this rank's part and make its batches; collective over the group.

        Args:
            saved: arrays of the DNN's checkpoint; if they hold no partition, the last round's is used.
            balancer: splits the steps.
            suspended: whether this rank has been asked to stop; called before each sample.

        Returns: the batches; None, on all ranks, if a rank was asked to stop before it had loaded its part.
        Raises:
            GroupFailed: on all ranks, if a rank could not open the data, or there are fewer usable samples
                than ranks. If too many samples are broken for the run to continue, it does not raise: then
                `num_bad` of the batches exceeds the limit.
        """
        source = member.on_all_ranks("opening the data", self._open)
        with self._context.reading(source):
            self.batches = self._load(member, source, saved, balancer, suspended)
        return self.batches

    def _load(
        self,
        member: GroupMember,
        source: PreprocessedSamples,
        saved: Mapping[str, Array],
        balancer: Balancer,
        suspended: Callable[[], bool],
    ) -> PartBatches | None:
        config, spec, comm = self._context.config, self._facts.spec, member.comm
        if self.chooses_by_size and source.sizes is None and self._measured is None:
            self._measured = np.zeros(len(source.dataset))
        known = member.on_all_ranks("reading the parts", lambda: self._known(saved, spec.num_train))
        begun_with = partition = of_master(comm, known, spec.num_train)
        if partition is None or partition.num_parts != comm.size:
            partition = self._deal(member, source, partition, suspended)
        if partition is None:
            self._stopped(begun_with)
            return None
        loaded = self._load_part(member, source, partition, suspended)
        if loaded is not None and self._should_deal_again(partition, source, loaded.unusable):
            if member.is_master:
                log.warning("broken samples leave a part empty; the data is dealt again")
            partition = self._deal(member, source, partition, suspended, loaded.unusable[source.train_ids])
            loaded = None if partition is None else self._load_part(member, source, partition, suspended)
        if partition is None or loaded is None:
            self._stopped(begun_with)
            return None
        unusable = loaded.unusable
        if not self._too_many(unusable):  # otherwise no rank draws from the parts
            partition = member.on_all_ranks(
                "leaving broken samples out", partial(_only_usable, partition, unusable[source.train_ids])
            )
        self.last, held = partition, loaded.held
        log.info("holds %d samples, %.1f MB", len(held.ids), held.num_bytes / 1e6)
        of_parts = (
            comm.open_pieces(),
            held,
            source.train_ids,
            partition,
            config.data.max_traversal_gap,
            config.seed,
            lambda: self._context.keep_in_touch("moving samples between parts"),
        )
        of_batches = (
            balancer,
            member.dnn.batch_size,
            config.seed,
            ~unusable[source.validation_ids],
            int(np.count_nonzero(unusable)),
            [(error.sample_id, error.where, error.reason) for error in loaded.bad],
        )
        if not self.chooses_by_size:
            return PartBatches(spec, source.over(held), Parts(*of_parts), *of_batches)
        sizes = self._sizes_of_all(comm, source)[source.train_ids]
        chosen = ChronicaParts(
            *of_parts,
            sizes=sizes,
            weights=lambda: balancer.weights,
            steps_per_pass=-(-spec.num_train // member.dnn.batch_size),
        )
        mean = float(sizes.mean())
        dealer = make_dealer(config.balance, is_sized=spec.is_sized, num_ranks=comm.size, mean_size=mean)
        return ChronicaBatches(spec, source.over(held), chosen, *of_batches, sizes=sizes, dealer=dealer)

    def _sizes_of_all(self, comm: GroupComm, source: PreprocessedSamples) -> NDArray[np.float64]:
        """The relative size of each sample, by id: as declared, or as measured by who read it; collective.

        All ranks keep them, for samples move between ranks. One that is broken gets the size 1.
        """
        if self._measured is None:
            assert source.sizes is not None
            return source.sizes
        self._measured = comm.all_reduce(self._measured, "max")
        return np.where(self._measured > 0, self._measured, 1.0)

    @property
    def num_bad(self) -> int:
        """Broken samples of the whole dataset, as far as known."""
        return 0 if self.batches is None else self.batches.num_bad

    def facts(self) -> dict[str, Any]:
        """Return the partition's facts for the ledger; only while batches are loaded."""
        assert self.batches is not None
        return self.batches.parts.facts()

    def arrays(self) -> Mapping[str, Array]:
        """Return the partition as arrays of a checkpoint; none if it is unknown."""
        partition = self.last if self.batches is None else self.batches.parts.performed
        return {} if partition is None else partition_arrays(partition)

    def keep(self) -> None:
        """Keep the partition at the end of a round, for the next round."""
        if self.batches is not None:
            self.last = self.batches.parts.performed

    def close(self) -> None:
        """End the round's exchange of samples; collective."""
        batches, self.batches = self.batches, None
        if batches is not None:
            batches.parts.close()

    def _stopped(self, begun_with: Partition | None) -> None:
        """Record that loading was stopped, on all ranks; the next load starts from the same partition."""
        log.info("stopped while loading data, as requested")
        self.last = begun_with

    def _open(self) -> PreprocessedSamples:
        self._context.announce("opening the data")
        source = open_source(self._context.config)
        known, name = self._facts.as_found, self._context.config.data.dataset
        if source.fingerprint != known:
            one, other = shortened([known, source.fingerprint])
            raise DataError(
                f"data.dataset {name} is not the same on all ranks: fingerprints {one} and "
                f"{other}; put it where all nodes can read it"
            )
        if self._context.config.data.partition == "by_class" and not source.dataset.label_spec.is_class:
            raise DataError(
                "data.partition: got 'by_class', but the labels of this dataset are not classes; use 'random'"
            )
        return source

    def _deal(
        self,
        member: GroupMember,
        source: PreprocessedSamples,
        before: Partition | None,
        suspended: Callable[[], bool],
        unusable: NDArray[np.bool_] | None = None,
    ) -> Partition | None:
        """Deal the data to this group's ranks; collective.

        Args:
            before: a partition that does not fit: for a group of another size, or with an empty part.
            unusable: mask of the training samples known to be broken, by index.

        Returns: the new partition; None, on all ranks, if a rank was asked to stop while reading labels.
        """
        config, comm = self._context.config, member.comm
        if before is not None and before.num_parts != comm.size and member.is_master:
            log.warning("the data had %d parts and is dealt again to %d slots", before.num_parts, comm.size)
        rule, number = config.data.partition, 0 if before is None else before.number + 1
        labels = None
        if rule == "by_class":
            self._report(member, f"reading the labels of {source.num_train} samples to deal them by class")
            own = member.on_all_ranks("reading labels", lambda: self._own_labels(source, comm, suspended))
            if not _all_have(comm, own is not None):
                return None
            assert own is not None
            labels = comm.all_reduce(own, "sum")
            broken = labels == NO_LABEL
            unusable = broken if unusable is None else unusable | broken
        dealt = member.on_all_ranks(
            "dealing the data",
            lambda: deal_parts(source.num_train, comm.size, rule, config.seed, labels, number, unusable),
        )
        return dealt if before is None else replace(dealt, left=before.left)

    def _own_labels(
        self, source: PreprocessedSamples, comm: GroupComm, suspended: Callable[[], bool]
    ) -> NDArray[np.int64] | None:
        """Read this rank's share of the training labels.

        Returns: int64 of shape (num_train,): classes, `NO_LABEL` for broken samples, and 0 for the samples of
            other ranks; None if this rank is asked to stop meanwhile.
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
        source: PreprocessedSamples,
        partition: Partition,
        suspended: Callable[[], bool],
    ) -> _Loaded | None:
        """Read this rank's part, including samples that were broken before; collective.

        Returns: the loaded part; None, on all ranks, if a rank was asked to stop before it had loaded its
            part.
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
            self._report(member, text_of_reading(missing))
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
        """Whether more samples are broken than the config allows, which ends the run."""
        return bool(np.count_nonzero(unusable) > self._facts.max_broken)

    def _should_deal_again(
        self, partition: Partition, source: PreprocessedSamples, unusable: NDArray[np.bool_]
    ) -> bool:
        """Whether broken samples leave a part empty although there are enough usable samples for all."""
        sizes = _usable_sizes(with_all_samples(partition), unusable[source.train_ids])
        return min(sizes) == 0 and sum(sizes) >= len(sizes) and not self._too_many(unusable)

    def _known(self, saved: Mapping[str, Array], num_train: int) -> Partition | None:
        return partition_of_arrays(saved, num_train) or self.last

    def _read(
        self,
        source: PreprocessedSamples,
        held: HeldSamples,
        train: NDArray[np.int64],
        validation: NDArray[np.int64],
        suspended: Callable[[], bool],
    ) -> list[BadSample] | None:
        """Read this rank's part and its share of the validation samples; skip samples that it already holds.

        Args:
            held: the samples are added here.
            train, validation: ids of the samples that this rank must hold.

        Returns: the samples that cannot be read or preprocessed; None if this rank is asked to stop.
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
                sample, _ = samples.sample(sample_id, 0, index < len(train))  # checks it
                if self._measured is not None:
                    self._measured[sample_id] = source.sizes_of(np.array([sample_id]), [sample])[0]
            except BadSample as error:
                held.drop(sample_id)
                bad.append(BadSample(sample_id, source.dataset.describe(sample_id), error.reason))
        return bad

    def _report(self, member: GroupMember, what: str) -> None:
        """Report to the user what the group reads; only the master sends it."""
        if member.is_master:
            self._context.channel.send(SCHEDULER_RANK, DataLoading(member.dnn.name, what))

    def _poll(self) -> None:
        self._context.keep_in_touch("loading a part of the data")


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The samples that a rank holds, those it could not read, and a mask of all broken samples, by id."""

    held: HeldSamples
    bad: list[BadSample]
    unusable: NDArray[np.bool_]


def _usable_sizes(partition: Partition, unusable: NDArray[np.bool_]) -> list[int]:
    """Sizes of the parts without these training samples."""
    usable = partition.owner[~unusable & (partition.owner != NO_PART)]
    return [int(size) for size in np.bincount(usable, minlength=partition.num_parts)]


def _only_usable(before: Partition, unusable: NDArray[np.bool_]) -> Partition:
    """The parts of `before` without these training samples, and with samples that have been repaired since.

    Raises: DataError: if a part would be empty.
    """
    dealt = with_all_samples(before)
    sizes = _usable_sizes(dealt, unusable)
    if min(sizes) == 0:
        raise DataError(
            f"{sum(sizes)} of {len(unusable)} training samples are usable, and the parts of the partitioned "
            f"data would hold {sizes} of them; allowed: at least one on each slot. Repair the broken "
            "samples, or use fewer slots (schedule.max_slots_per_dnn)"
        )
    partition = without_samples(dealt, unusable)
    if np.array_equal(partition.owner, before.owner):
        return before
    return replace(begun_anew(before, partition.owner), left=before.left)


def text_of_reading(missing: Sequence[int]) -> str:
    """The progress message about reading parts.

    Args:
        missing: number of samples that each slot of the group must read, not all 0.
    """
    least, most = min(missing), max(missing)
    if len(missing) == 1:
        return f"about {most} samples are read and kept on its slot"
    number = f"about {most}" if most - least <= _ALIKE else f"{least} to {most}"
    return f"{number} samples are read and kept on each of {len(missing)} slots"


def _of_all(comm: GroupComm, mine: int) -> list[int]:
    """Gather the numbers of all ranks; collective."""
    return [int(number) for number in comm.all_gather(np.array(mine, np.int64))]


def _all_have(comm: GroupComm, mine: bool) -> bool:
    """Whether `mine` is true on all ranks; collective."""
    return bool(comm.all_reduce(np.array(mine, np.uint8), "min"))


def _unusable(comm: GroupComm, source: PreprocessedSamples, bad: list[BadSample]) -> NDArray[np.bool_]:
    """Mask of the dataset's broken samples, by id; collective."""
    mine = np.zeros(len(source.dataset), np.uint8)
    mine[[error.sample_id for error in bad]] = 1
    return comm.all_reduce(mine, "max").astype(np.bool_)
