"""A reader gives the samples of any selection of positions, over blocks and around broken samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hpcbal.data.dataset import BadSample
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.dataplane.producer import NodeTopology, Producer
from hpcbal.dataplane.reader import StreamReader
from hpcbal.dataplane.replication import OneNode
from hpcbal.dataplane.ring import NodeRing
from hpcbal.dataplane.stream import StreamPlan, StreamSpec
from hpcbal.errors import HpcbalError
from hpcbal.events.history import Position
from hpcbal.policies.selection import Selection

NUM_TRAIN, NUM_POSITIONS, BLOCK = 40, 50, 8


class Numbers:
    """Samples that are their own ids; in some passes every seventh is broken."""

    def __init__(self, static: bool, broken: bool) -> None:
        self.static, self.broken = static, broken

    def ids_of_pass(self, pass_index: int) -> NDArray[np.int64]:
        return 100 + np.arange(NUM_POSITIONS)

    def sample(self, sample_id: int, pass_index: int, training: bool) -> tuple[NDArray[Any], NDArray[Any]]:
        if self.broken and sample_id % 7 == 0:
            raise BadSample(sample_id, str(sample_id), "broken")
        length = 3 if self.static else 1 + sample_id % 3
        return np.full(length, float(sample_id)), np.array(sample_id % 5)


def stream_of(source: Numbers, *, is_sized: bool = False) -> StreamReader:
    """A reader whose waiting makes the blocks."""
    sample = SampleSpec.of((3 if source.static else None,), "float64", 24)
    spec = StreamSpec(NUM_TRAIN, NUM_POSITIONS, BLOCK, sample, LabelSpec((), "int64"), 2**20, is_sized)
    ring = NodeRing.private(spec, 1, 1)
    producer = Producer(ring, OneNode(0), NodeTopology((0,), (0,)), source, 0)
    reader = StreamReader(ring, 0, poll=lambda: producer.step() and None)
    plan = StreamPlan(1, 0, 0, producers=(0,), training_nodes=(0,))
    reader.begin(plan, Position(0))
    producer.start(plan)
    return reader


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("broken", [False, True])
def test_a_selection_is_read_in_order_without_its_broken_samples(static: bool, broken: bool) -> None:
    stream = stream_of(Numbers(static, broken))

    @given(st.sets(st.integers(0, NUM_POSITIONS - 1)))
    @settings(deadline=None, max_examples=30)
    def check(positions: set[int]) -> None:
        batch = stream.read_selection(0, Selection.of(sorted(positions)))
        ids = [100 + p for p in sorted(positions) if not (broken and (100 + p) % 7 == 0)]
        assert batch.ids.tolist() == ids
        assert batch.y.tolist() == [i % 5 for i in ids]
        for x, sample_id in zip(batch.x, ids, strict=True):
            assert x.tolist() == [float(sample_id)] * (3 if static else 1 + sample_id % 3)
        assert stream.valid(0, Selection.of(sorted(positions))).tolist() == [i - 100 for i in ids]

    check()
    stream.end()


def test_neighbours_are_read_as_a_range_is_and_memory_is_used_again() -> None:
    stream, out = stream_of(Numbers(static=True, broken=False)), np.zeros((12, 3))
    by_range = stream.read(0, 5, 17)
    picked = stream.read_selection(0, Selection.of(range(5, 17)), out=out)
    np.testing.assert_array_equal(picked.ids, by_range.ids)
    np.testing.assert_array_equal(out[:, 0], by_range.ids)
    assert np.shares_memory(out, picked.x)
    with pytest.raises(HpcbalError, match="of a pass of 50"):
        stream.read_selection(0, Selection.of([3, NUM_POSITIONS]))
    stream.end()


def test_sizes_travel_with_the_samples_and_are_0_where_broken() -> None:
    class Sized(Numbers):
        def sizes_of(self, ids: NDArray[np.int64], samples: Any) -> NDArray[np.float64]:
            return ids / 10

    for static in (True, False):
        stream = stream_of(Sized(static, broken=True), is_sized=True)
        ids, sizes = stream.measure(0, 5, 30)
        assert ids.tolist() == list(range(105, 130))
        assert sizes.tolist() == [0.0 if i % 7 == 0 else i / 10 for i in ids.tolist()]
        assert stream.read(0, 5, 30).ids.tolist() == [i for i in ids.tolist() if i % 7]
        stream.end()
