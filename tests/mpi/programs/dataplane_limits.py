"""The limits of the stream: producers that are held back and freed, and the errors of wrong calls."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
from dataplane_harness import Cast, FakeSource, read_passes
from mpi4py import MPI

from hpcbal.dataplane.producer import Producer
from hpcbal.dataplane.reader import StreamReader
from hpcbal.dataplane.ring import NodeRing
from hpcbal.errors import HpcbalError, InputError
from hpcbal.events.history import Position

SLOTS, BLOCK_SAMPLES = 3, 4
PAUSE_S = 0.2
PASSES = range(2)


def idle_readers_hold_all_producers_back(cast: Cast, source: FakeSource) -> None:
    """While no rank reads, no node makes more than fits in its ring and its send buffers.

    Readers begin when all producers have been counted, however late a busy machine lets them start.
    """
    counts: list[int] = []
    counted = cast.world.Dup()

    def read(reader: StreamReader) -> None:
        counted.Ibarrier().Wait()
        read_passes(reader, source, PASSES, BLOCK_SAMPLES)

    actor = cast.producer(source) if cast.is_producer else cast.reader()
    if isinstance(actor, Producer):
        counts = sample_counts(actor, PAUSE_S / 2, counted)
    cast.run_round(cast.plan(1), actor, read, Position(0))
    if isinstance(actor, Producer):
        ahead = SLOTS + (2 if cast.node not in cast.training_nodes else 0)
        assert 0 < counts[-1] <= ahead * BLOCK_SAMPLES, counts
    counted.Free()


def sample_counts(producer: Producer, for_s: float, counted: MPI.Intracomm) -> list[int]:
    """Note the producer's counter at each step, for so long after its first one; then enter `counted`."""
    counts: list[int] = []
    step, until_s = producer.step, math.inf
    entered: list[MPI.Request] = []

    def counting_step() -> bool:
        nonlocal until_s
        did = step()
        if not counts:
            until_s = time.monotonic() + for_s
        if not entered:
            counts.append(producer.samples_made)
        if not entered and time.monotonic() > until_s:
            entered.append(counted.Ibarrier())
        elif entered:
            entered[0].Test()
        return did

    producer.step = counting_step  # type: ignore[method-assign]
    return counts


def a_reader_that_leaves_frees_its_slots(cast: Cast, source: FakeSource) -> None:
    """One reader leaves after one block; the others get everything."""

    def read(reader: StreamReader) -> None:
        if (cast.node, cast.index) == (1, 0):
            source.check(reader.read(0, 0, BLOCK_SAMPLES), 0, 0, BLOCK_SAMPLES)
        else:
            read_passes(reader, source, PASSES, BLOCK_SAMPLES)

    actor = cast.producer(source) if cast.is_producer else cast.reader()
    cast.run_round(cast.plan(1), actor, read, Position(0))


def a_stream_that_all_have_left_stands_still(cast: Cast, source: FakeSource) -> None:
    """Between the last reader's leaving and the stop, producers do not run away."""

    def read(reader: StreamReader) -> None:
        reader.end()
        time.sleep(PAUSE_S)

    actor = cast.producer(source) if cast.is_producer else cast.reader()
    cast.run_round(cast.plan(1), actor, read, Position(0))
    if isinstance(actor, Producer):
        assert actor.samples_made <= 4 * (SLOTS + 2) * BLOCK_SAMPLES, actor.samples_made


def wrong_reads_are_errors(cast: Cast, source: FakeSource) -> None:
    """Reading what was released, too much, or outside a round; and `poll` ends a wait."""

    class InterruptionError(Exception):
        pass

    def interrupt() -> None:
        raise InterruptionError

    def read(reader: StreamReader) -> None:
        reader.release(0, 2 * BLOCK_SAMPLES)
        expect(HpcbalError, "after its release", lambda: reader.read(0, 0, 3))
        expect(HpcbalError, "after its release", lambda: reader.count_valid(0, 0, 3))
        expect(InputError, "does not fit in the ring", lambda: reader.read(0, 8, 8 + 4 * BLOCK_SAMPLES))
        expect(HpcbalError, "of a pass of", lambda: reader.read(0, 8, 10_000))
        expect(InterruptionError, "", lambda: reader.read(50, 0, 4))
        assert reader.wait_s > 0
        assert len(reader.read(0, 11, 11)) == 0
        reader.release(0, 4)  # going back does nothing
        source.check(reader.read(0, 9, 15), 0, 9, 15)

    if cast.is_producer:
        cast.run_round(cast.plan(1), cast.producer(source), read, Position(0))
        return
    reader = StreamReader(cast.ring, cast.index, poll=interrupt_later(interrupt))
    expect(HpcbalError, "outside a round", lambda: reader.read(0, 0, 1))
    cast.run_round(cast.plan(1), reader, read, Position(0))


def interrupt_later(interrupt):
    """Let the first waits for real blocks pass; a block far ahead never comes."""
    deadline = []

    def poll() -> None:
        if not deadline:
            deadline.append(time.monotonic() + 5)
        if time.monotonic() > deadline[0] or len(deadline) > 2000:
            deadline.clear()
            interrupt()
        deadline.append(0.0)

    return poll


def memory_that_is_not_there_is_an_error_on_all_ranks(cast: Cast, source: FakeSource) -> None:
    """A ring larger than the node's shared memory names the bytes."""
    huge = FakeSource(2**40, 2**40).spec(1024, 2**30)
    expect(InputError, "memory for the ring", lambda: NodeRing.create(cast.node_comm, huge, 1, 1))


def recycled_memory_is_used(cast: Cast, source: FakeSource) -> None:
    """`out` receives the samples, holes closed up."""

    def read(reader: StreamReader) -> None:
        out = cast.spec.empty_batch(2 * BLOCK_SAMPLES)
        for start in range(0, 16, 5):
            batch = reader.read(0, start, start + 5, out=out)
            source.check(batch, 0, start, start + 5)
            assert isinstance(batch.x, np.ndarray)
            assert np.shares_memory(batch.x, out)
            reader.release(0, start + 5)

    actor = cast.producer(source) if cast.is_producer else cast.reader()
    cast.run_round(cast.plan(1), actor, read, Position(0))


def expect(kind: type[Exception], words: str, call) -> None:
    caught = None
    try:
        call()
    except kind as error:
        caught = error
    assert caught is not None, f"no {kind.__name__} with {words!r}"
    assert words in str(caught), caught


NODES = [(1, 1), (1, 2), (1, 0)]
LIMITS = (
    idle_readers_hold_all_producers_back,
    a_reader_that_leaves_frees_its_slots,
    a_stream_that_all_have_left_stands_still,
    wrong_reads_are_errors,
    memory_that_is_not_there_is_an_error_on_all_ranks,
    recycled_memory_is_used,
)


def try_limit(world: MPI.Intracomm, limit: Callable[[Cast, FakeSource], None]) -> None:
    source = FakeSource(30, 43, bad_every=7 if limit is recycled_memory_is_used else 0)
    cast = Cast(world, NODES, source.spec(BLOCK_SAMPLES, SLOTS))
    limit(cast, source)
    cast.close()
