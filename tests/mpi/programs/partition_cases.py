"""Samples that move between ranks under load, with a ledger of their ids."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from cases import try_cases
from mpi4py import MPI

from hpcbal.comm.mpi import MpiGroupComm
from hpcbal.config.schema.ensemble import BalanceConfig
from hpcbal.data import PreprocessedSamples
from hpcbal.data.dataset import HeldSamples, RawSample
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.dataplane import sample_transfer
from hpcbal.dataplane.stream import StreamSpec
from hpcbal.policies.batching.min_max import apportion
from hpcbal.policies.partitioning import deal_parts, order_of_part, spans_of_draw
from hpcbal.runtime.balance.balancer import FixedSplit
from hpcbal.runtime.group.member import GroupMember
from hpcbal.runtime.health.ending import StopFlag
from hpcbal.runtime.partitions import loading
from hpcbal.runtime.partitions.loading import PartLoader
from hpcbal.runtime.partitions.part import Parts
from hpcbal.runtime.rank.context import RankContext
from hpcbal.runtime.rank.data import StreamFacts
from hpcbal.runtime.wire.protocol import DataLoading
from hpcbal.telemetry.streams.slices import SliceRecorder
from hpcbal.training.groups import GroupFailed

NUM_SAMPLES, FIRST_ID, BATCH_SIZE, SEED = 400, 1000, 40, 7
STEPS_AHEAD, STEPS_PER_PASS = 1, 8
PIECE_BYTES = (2000, sample_transfer.PIECE_BYTES)


class Varied:
    """Samples of every kind that a dataset may give, each derived from its id."""

    num_classes = 10
    sample_spec: SampleSpec | None
    label_spec = LabelSpec((), "int64")

    def __init__(self, encoded: bool) -> None:
        self.sample_spec = None if encoded else SampleSpec.of((None, 3), "float32", 1200)

    def __len__(self) -> int:
        return FIRST_ID + NUM_SAMPLES

    def read(self, sample_id: int) -> tuple[RawSample, int]:
        length = 1 + sample_id % 97
        if self.sample_spec is None:
            return bytes([sample_id % 251]) * length, sample_id % 10
        return np.full((length, 3), sample_id, np.float32), sample_id % 10

    def describe(self, sample_id: int) -> str:
        return str(sample_id)


def make_parts(comm: MPI.Intracomm, encoded: bool, max_gap: float | None) -> Parts:
    dataset = Varied(encoded)
    held = HeldSamples(dataset)
    ids = np.arange(FIRST_ID, FIRST_ID + NUM_SAMPLES)
    partition = deal_parts(NUM_SAMPLES, comm.size, "random", SEED)
    for sample_id in ids[partition.members(comm.rank)].tolist():
        held.put(sample_id, *dataset.read(sample_id))
    return Parts(MpiGroupComm(comm).open_pieces(), held, ids, partition, max_gap, SEED, poll=lambda: None)


def shares_of(step: int, num_ranks: int) -> tuple[int, ...]:
    """Speeds that stay for a while, then change; now and then a short step."""
    rng = np.random.default_rng(step // 40)
    return apportion(BATCH_SIZE // (1 + step % 3), rng.uniform(0.2, 4.0, num_ranks).tolist())


def check_held(comm: MPI.Intracomm, parts: Parts, encoded: bool) -> None:
    """Over all ranks every sample is held once, whole, with its label."""
    dataset = Varied(encoded)
    for sample_id in parts.held.ids.tolist():
        raw, label = parts.held.read(sample_id)
        wanted, wanted_label = dataset.read(sample_id)
        assert type(raw) is type(wanted), sample_id
        assert np.array_equal(raw, wanted), sample_id
        assert label == wanted_label
    everyone = comm.allgather(parts.held.ids.tolist())
    ids = sorted(sample_id for held in everyone for sample_id in held)
    assert ids == list(range(FIRST_ID, FIRST_ID + NUM_SAMPLES)), (len(ids), len(set(ids)))


def check_under_load(comm: MPI.Intracomm, encoded: bool) -> None:
    """Whatever speeds do, each rank draws only what it holds, each sample as often as its traversals say."""
    parts = make_parts(comm, encoded, 1.0)
    drawn: Counter[int] = Counter()
    rng = np.random.default_rng(comm.rank)
    number = 0
    for first_step in range(0, 400, STEPS_PER_PASS):
        parts.begin_pass()
        planned = 0
        for step in range(first_step, first_step + STEPS_PER_PASS):
            while first_step + planned <= min(step + STEPS_AHEAD, first_step + STEPS_PER_PASS - 1):
                shares = shares_of(first_step + planned, comm.size)
                planned += 1
                source = parts.plan_step(shares)
                if source.number != number:
                    number, drawn = source.number, Counter()
                    assert source.drawn == (0,) * comm.size
                    assert step == first_step, "samples move between passes only"
                    check_held(comm, parts, encoded)
                size, before = source.sizes[comm.rank], source.drawn[comm.rank]
                for traversal, first, last in spans_of_draw(size, before, shares[comm.rank]):
                    chosen = order_of_part(source, comm.rank, traversal, SEED)[first:last] + FIRST_ID
                    assert all(sample_id in parts.held for sample_id in chosen.tolist())
                    drawn.update(chosen.tolist())
                traversed = (before + shares[comm.rank]) // size
                held = parts.held.ids.tolist()
                assert all(drawn[sample_id] - traversed in (0, 1) for sample_id in held), (drawn, traversed)
            time.sleep(rng.uniform(0.0, 3e-4))
            comm.Barrier()
            parts.step_performed()
        for _ in range(first_step // STEPS_PER_PASS % 4):  # as many validation steps
            parts.move_samples()
            comm.Barrier()
    assert parts.num_migrations >= 3, parts.facts()
    assert parts.num_moved > 100
    parts.close()
    check_held(comm, parts, encoded)


def check_undone(comm: MPI.Intracomm, num_steps: int) -> None:
    """A migration that is left half-way leaves every sample where it was, and no message behind."""
    parts = make_parts(comm, False, 1.0)
    held = parts.held.ids.tolist()
    shares = tuple(40 if rank == 0 else 1 for rank in range(comm.size))
    parts.begin_pass()
    while parts.performed.drawn[0] <= 2 * parts.performed.sizes[0]:
        parts.plan_step(shares)
        parts.step_performed()
    for _ in range(num_steps):
        parts.move_samples()
        comm.Barrier()
    parts.close()
    assert parts.held.ids.tolist() == held
    assert parts.performed.number == parts.num_migrations == 0
    assert min(parts.performed.drawn) > 0
    check_held(comm, parts, False)


def make_loader(
    comm: MPI.Intracomm, source: PreprocessedSamples, reported: list[str]
) -> tuple[PartLoader, GroupMember]:
    """A loader of parts by class, on a rank whose surroundings are fake."""
    data = SimpleNamespace(
        partition="by_class", dataset="varied", max_traversal_gap=None, max_bad_fraction=0.0
    )
    num_positions = source.num_train + source.num_validation
    spec = StreamSpec(
        source.num_train, num_positions, 8, source.sample_spec, source.label_spec, ring_bytes=2**20
    )

    def send(rank: int, message: object) -> None:
        if isinstance(message, DataLoading):
            reported.append(message.what)

    unused: Any = None
    context = RankContext(
        config=cast(
            "Any", SimpleNamespace(seed=SEED, data=data, balance=BalanceConfig(), stall_timeout_s=60.0)
        ),
        output=Path(),
        roles=unused,
        channel=cast("Any", SimpleNamespace(rank=comm.rank, send=send)),
        stop=StopFlag(),
        slices=SliceRecorder(0, enabled=False),
    )
    member: Any = SimpleNamespace(
        comm=MpiGroupComm(comm),
        is_master=comm.rank == 0,
        dnn=SimpleNamespace(name="a", batch_size=BATCH_SIZE),
        context=context,
        on_all_ranks=lambda doing, work: GroupMember.on_all_ranks(member, doing, work),
    )
    loading.open_source = lambda config: source
    facts = StreamFacts(spec, Varied.num_classes, source.fingerprint, 0.0, source.fingerprint)
    return PartLoader(context, facts), member


def check_stopped_among_labels(comm: MPI.Intracomm) -> None:
    """One rank is asked to stop while labels are read: no rank reads a part or drops what it holds."""
    source = PreprocessedSamples(Varied(False), [], SEED, validation_fraction=0.2, max_sample_bytes=1200)
    reported: list[str] = []
    loader, member = make_loader(comm, source, reported)
    balancer = FixedSplit((BATCH_SIZE // comm.size,) * comm.size)
    batches = loader.load(member, {}, balancer, lambda: False)
    assert batches is not None
    batches.parts.close()
    held = batches.parts.held.ids.tolist()
    assert held
    loader.last = before = deal_parts(source.num_train, comm.size + 1, "random", SEED)
    reported.clear()
    asked = iter(range(source.num_train))
    is_last = comm.rank == comm.size - 1
    assert loader.load(member, {}, balancer, lambda: is_last and next(asked) >= 5) is None
    assert batches.parts.held.ids.tolist() == held, "it holds others now"
    assert ["labels" in what for what in reported] == [True] * (comm.rank == 0), reported
    assert loader.last is not None
    assert (loader.last.num_parts, loader.last.owner.tolist()) == (comm.size + 1, before.owner.tolist())


def check_failed_on_one_rank(comm: MPI.Intracomm) -> None:
    """One rank runs out of memory, at whatever: all of the group fail together, and none waits for it."""
    source = PreprocessedSamples(Varied(False), [], SEED, validation_fraction=0.2, max_sample_bytes=1200)
    balancer = FixedSplit((BATCH_SIZE // comm.size,) * comm.size)

    def fail(*_: Any) -> Any:
        raise MemoryError("made up")

    # Labels come first, then what is held.
    for owner, name, broken in ((Varied, "read", fail), (HeldSamples, "ids", property(fail))):
        loader, member = make_loader(comm, source, [])
        batches = loader.load(member, {}, balancer, lambda: False)
        assert batches is not None
        batches.parts.close()
        loader.last = deal_parts(source.num_train, comm.size + 1, "random", SEED)
        original = getattr(owner, name)
        if comm.rank == comm.size - 1:
            setattr(owner, name, broken)
        try:
            with pytest.raises(GroupFailed, match="made up"):
                loader.load(member, {}, balancer, lambda: False)
        finally:
            setattr(owner, name, original)


def check_all(comm: MPI.Intracomm, piece_bytes: int) -> None:
    sample_transfer.PIECE_BYTES = piece_bytes
    check_under_load(comm, False)
    check_under_load(comm, True)
    for after in (1, 3, 200):  # at once, half-way, at the end
        check_undone(comm, after)
    check_stopped_among_labels(comm)
    check_failed_on_one_rank(comm)


if __name__ == "__main__":
    try_cases(
        (f"{num_ranks} ranks, {piece_bytes} bytes", num_ranks, partial(check_all, piece_bytes=piece_bytes))
        for num_ranks in (2, 4)
        for piece_bytes in PIECE_BYTES
    )
