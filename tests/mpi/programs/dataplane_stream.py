"""Every reader checks every sample of a few passes, and each sample is made once, by whichever producer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial

from dataplane_harness import Cast, FakeSource, Nodes, read_passes
from mpi4py import MPI

from hpcbal.dataplane.producer import Producer
from hpcbal.dataplane.stream import round_block
from hpcbal.events.history import Position

NUM_TRAIN, NUM_POSITIONS, BLOCK_SAMPLES = 45, 61, 8


@dataclass(frozen=True)
class Settings:
    """A stream and how it is read.

    Attributes:
        offsets: where the first pass starts; one round for each.
        steps: samples per read, by rank.
        delays_s: sleep after each read, by rank.
    """

    nodes: Nodes
    shape: tuple[int | None, ...] = (5, 3)
    bad_every: int = 0
    passes: int = 3
    first_pass: int = 0
    offsets: tuple[int, ...] = (0,)
    slots: int = 4
    steps: tuple[int, ...] = (8,)
    delays_s: tuple[float, ...] = (0.0,)


def stream(world: MPI.Intracomm, settings: Settings) -> None:
    source = FakeSource(NUM_TRAIN, NUM_POSITIONS, settings.shape, settings.bad_every)
    spec = source.spec(BLOCK_SAMPLES, settings.slots)
    cast = Cast(world, settings.nodes, spec)
    actor = cast.producer(source) if cast.is_producer else cast.reader()
    first_pass = settings.first_pass
    passes = range(first_pass, first_pass + settings.passes)
    for number, offset in enumerate(settings.offsets):
        source.reads.clear()
        read = partial(
            read_passes,
            source=source,
            passes=passes,
            step=settings.steps[world.rank % len(settings.steps)],
            start=offset,
            delay_s=settings.delays_s[world.rank % len(settings.delays_s)],
        )
        plan = cast.plan(number + 1, first_pass, round_block(spec, first_pass, first_pass, offset))
        cast.run_round(plan, actor, read, Position(first_pass, offset))
        counts: Counter[tuple[int, int]] = Counter()
        for reads in world.allgather(source.reads):
            counts.update(reads)
        check_made_once(counts, passes, offset)
        if cast.is_producer:
            assert isinstance(actor, Producer)
            bad = actor.take_bad()
            assert all(source.is_bad(sample_id) for sample_id, _, _ in bad)
            assert len(bad) == sum(source.is_bad(i) for i, _ in source.reads)
    cast.close()


def check_made_once(counts: Counter[tuple[int, int]], passes: range, offset: int) -> None:
    """Each sample of these passes once, what comes before the offset not at all, and nothing twice."""
    assert set(counts.values()) == {1}
    skipped = offset - offset % BLOCK_SAMPLES if offset < NUM_POSITIONS else NUM_POSITIONS
    for pass_index in passes:
        made = sum(of_pass == pass_index for _, of_pass in counts)
        assert made == NUM_POSITIONS - (skipped if pass_index == passes[0] else 0)
