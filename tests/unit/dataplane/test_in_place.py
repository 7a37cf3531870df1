"""Batches read in place: where they lie, and that nobody overwrites them before they are released."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hpcbal.data.arrays import is_aligned
from hpcbal.data.dataset import BadSample
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.dataplane.producer import NodeTopology, Producer
from hpcbal.dataplane.reader import Batch, StreamReader
from hpcbal.dataplane.replication import OneNode
from hpcbal.dataplane.ring import NodeRing
from hpcbal.dataplane.stream import StreamPlan, StreamSpec
from hpcbal.events.history import Position
from hpcbal.policies.selection import Selection

PROGRAM = Path(__file__).parent / "programs" / "processes_in_place.py"
NUM_TRAIN, NUM_POSITIONS, BLOCK, CELLS = 50, 62, 8, 6


class Numbers:
    """Samples of 64 bytes that are their id plus 1000 per pass; `broken` ids cannot be read."""

    def __init__(self, length: int | None = 8, broken: int = -1) -> None:
        self.length, self.broken = length, broken

    def spec(self, num_cells: int = CELLS) -> StreamSpec:
        sample = SampleSpec.of((self.length,), "float64", 64)
        sizes = (NUM_TRAIN, NUM_POSITIONS, BLOCK, sample, LabelSpec())
        cell_bytes = StreamSpec(*sizes, ring_bytes=2**30).cell_bytes
        return StreamSpec(*sizes, ring_bytes=num_cells * cell_bytes)

    def ids_of_pass(self, pass_index: int) -> NDArray[np.int64]:
        return np.arange(NUM_POSITIONS)

    def sample(self, sample_id: int, pass_index: int, training: bool) -> tuple[NDArray[Any], NDArray[Any]]:
        if sample_id == self.broken:
            raise BadSample(sample_id, str(sample_id), "broken")
        length = self.length or 1 + sample_id % 8
        return np.full(length, sample_id + 1000.0 * pass_index), np.array(sample_id)

    def check(self, batch: Batch, pass_index: int, start: int, stop: int) -> None:
        ids = [i for i in range(start, stop) if i != self.broken]
        assert batch.ids.tolist() == batch.y.tolist() == ids
        for x, sample_id in zip(batch.x, ids, strict=True):
            assert x.tolist() == [sample_id + 1000.0 * pass_index] * len(x)


class Stream:
    """A ring with one producer and some readers, all in this thread."""

    def __init__(self, source: Numbers, num_readers: int) -> None:
        self.ring = NodeRing.private(source.spec(), num_readers, 1)
        self.producer = Producer(self.ring, OneNode(0), NodeTopology((0,), (0,)), source, 0)
        self.readers = [StreamReader(self.ring, i, poll=self.produce) for i in range(num_readers)]
        plan = StreamPlan(1, 0, 0, (0,), (0,))
        for reader in self.readers:
            reader.begin(plan, Position(0))
        self.producer.start(plan)

    def produce(self) -> None:
        assert self.producer.step(), "a block is awaited that is never made"

    def read(self, pass_index: int, start: int, stop: int) -> Batch:
        return self.readers[0].read_selection(pass_index, Selection(start, stop), in_place=True)


def test_a_batch_that_lies_whole_in_the_ring_stays_there_and_is_aligned() -> None:
    stream = Stream(Numbers(), 1)
    for start, stop in ((0, 8), (8, 30), (3, 5), (0, 41)):
        batch = stream.read(0, start, stop)
        assert np.shares_memory(batch.x, stream.ring.samples)
        assert is_aligned(np.asarray(batch.x))
        assert np.asarray(batch.x).flags.c_contiguous
        with pytest.raises(ValueError, match="read-only"):  # or a user's model could change them for all
            batch.x[0] = 0.0
        Numbers().check(batch, 0, start, stop)
    stream.readers[0].release(0, 32)
    wrapped = stream.read(0, 40, 50)  # cells 5 and 0
    assert not np.shares_memory(wrapped.x, stream.ring.samples)
    Numbers().check(wrapped, 0, 40, 50)
    assert len(stream.read(0, 40, 40)) == 0
    picked = stream.readers[0].read_selection(0, Selection.of([41, 43]), in_place=True)
    assert not np.shares_memory(picked.x, stream.ring.samples)


def test_a_batch_with_a_hole_is_copied() -> None:
    source = Numbers(broken=9)
    stream = Stream(source, 1)
    source.check(stream.read(0, 0, 8), 0, 0, 8)
    holed = stream.read(0, 4, 12)
    source.check(holed, 0, 4, 12)
    assert not np.shares_memory(holed.x, stream.ring.samples)
    # The last block of a pass is shorter, and it is whole.
    stream.readers[0].release(0, 48)
    last = stream.read(0, 56, NUM_POSITIONS)
    source.check(last, 0, 56, NUM_POSITIONS)
    assert np.shares_memory(last.x, stream.ring.samples)


def test_samples_of_unequal_shape_stay_one_by_one() -> None:
    source = Numbers(length=None, broken=9)
    stream = Stream(source, 1)
    batch = stream.read(0, 4, 20)
    source.check(batch, 0, 4, 20)
    cells = [part for cell in stream.ring.cells for part in cell.parts]
    assert all(any(np.shares_memory(x, part) for part in cells) for x in batch.x)
    assert not any(x.flags.writeable for x in batch.x)
    kept = stream.readers[0].read_selection(0, Selection(4, 20))
    assert not any(np.shares_memory(x, part) for x in kept.x for part in cells)
    assert all(x.flags.writeable for x in kept.x)


@pytest.mark.parametrize("length", [8, None])
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_nothing_is_overwritten_before_its_release(length: int | None, data: st.DataObject) -> None:
    """Readers of several batch sizes hold one batch or two; the producer makes all that it may in between."""
    source = Numbers(length)
    sizes = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=3), label="batch sizes")
    stream = Stream(source, len(sizes))
    held: list[list[tuple[Batch, int, int, int]]] = [[] for _ in sizes]
    places = [(0, 0)] * len(sizes)
    for _ in range(data.draw(st.integers(1, 40), label="turns")):
        lowest = [lent[0][1:3] if lent else place for place, lent in zip(places, held, strict=True)]
        floor = min(1000 * of_pass + position for of_pass, position in lowest)
        who = data.draw(st.integers(0, len(sizes) - 1), label="reader")
        pass_index, start = places[who]
        stop = min(start + sizes[who], NUM_POSITIONS)
        # Whatever lies within the ring above the slowest reader can be read; others would have to wait.
        is_there = 1000 * pass_index + stop <= floor + (CELLS - 1) * BLOCK and pass_index * 1000 <= floor
        if len(held[who]) < 2 and is_there:
            batch = stream.readers[who].read_selection(pass_index, Selection(start, stop), in_place=True)
            held[who].append((batch, pass_index, start, stop))
            places[who] = (pass_index, stop) if stop < NUM_POSITIONS else (pass_index + 1, 0)
        elif held[who]:
            _, of_pass, _, end = held[who].pop(0)
            stream.readers[who].release(of_pass, end)
        while stream.producer.step():
            pass
        for lent in held:
            for batch, of_pass, begin, end in lent:
                source.check(batch, of_pass, begin, end)


def test_a_ring_lends_if_preprocessors_need_not_wait_for_the_step_to_end() -> None:
    reader = StreamReader(NodeRing.private(Numbers().spec(6), 1, 1), 0)  # 48 samples
    assert reader.can_lend(13)
    assert not reader.can_lend(14)
    spec = Numbers().spec(7)
    assert reader.bytes_to_lend(14) == spec.ring_bytes
    assert StreamReader(NodeRing.private(spec, 1, 1), 0).can_lend(14)
    assert reader.bytes_to_lend(22) is None  # three batches are more than a pass of 62 samples


def test_processes_under_load_and_a_killed_one_are_never_overwritten() -> None:
    """Readers check what they hold while the writer runs; one is killed with a batch in its hands."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads(done.stdout)
    assert facts["codes"] == [0, 0, 0, -signal.SIGKILL]
    assert facts["num_whole"] == [facts["num_wanted"]] * 3 + [300]
    assert facts["is_held_batch_whole"]
    assert facts["num_made"] == facts["num_wanted"]
