"""Records of named arrays come out of the ring as they went in, whatever their shapes and the order."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes
from numpy.typing import NDArray

from hpcbal.data.dataset import BadSample
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.dataplane.producer import NodeTopology, Producer
from hpcbal.dataplane.reader import StreamReader
from hpcbal.dataplane.replication import OneNode
from hpcbal.dataplane.ring import NodeRing
from hpcbal.dataplane.stream import StreamPlan, StreamSpec
from hpcbal.events.history import Position
from hpcbal.policies.selection import Selection
from hpcbal.training.rank_share import slices_of

dtypes = st.sampled_from(["uint8", "int16", "int64", "float32", "float64", "bool"])
names = st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=4, unique=True)


@st.composite
def specs(draw: st.DrawFn) -> tuple[SampleSpec, LabelSpec]:
    shapes = array_shapes(min_dims=0, max_dims=3, max_side=4)
    samples = {name: SampleSpec.of(draw(shapes), draw(dtypes)) for name in draw(names)}
    labels = {name: LabelSpec(draw(shapes), draw(dtypes)) for name in draw(names)}
    return SampleSpec.of_named(samples), LabelSpec.of_named(labels)


class Source:
    """Numbers that depend on sample, pass and name; `broken` ids cannot be read."""

    def __init__(self, sample: SampleSpec, label: LabelSpec, num: int, broken: set[int]) -> None:
        self.sample_spec, self.label_spec, self.num, self.broken = sample, label, num, broken

    def ids_of_pass(self, pass_index: int) -> NDArray[np.int64]:
        return np.random.default_rng(pass_index).permutation(self.num)

    def arrays(self, spec: Any, sample_id: int, pass_index: int) -> dict[str, NDArray[Any]]:
        rng = np.random.default_rng((sample_id, pass_index))
        return {
            name: rng.integers(0, 2 if each.dtype == "bool" else 100, each.shape).astype(each.dtype)
            for name, each in spec.by_name.items()
        }

    def sample(self, sample_id: int, pass_index: int, training: bool) -> Any:
        if sample_id in self.broken:
            raise BadSample(sample_id, str(sample_id), "broken")
        return tuple(
            spec.packed(self.arrays(spec, sample_id, pass_index))
            for spec in (self.sample_spec, self.label_spec)
        )


@settings(max_examples=60, deadline=None)
@given(specs(), st.data())
def test_arrays_come_back_by_name(both: tuple[SampleSpec, LabelSpec], data: st.DataObject) -> None:
    num, block = data.draw(st.integers(3, 30)), data.draw(st.integers(1, 7))
    broken = data.draw(st.sets(st.integers(0, num - 1), max_size=3))
    source = Source(*both, num, broken)
    spec = StreamSpec(num - 1, num, block, *both, ring_bytes=2**30)
    ring = NodeRing.private(spec, 1, 1)
    producer = Producer(ring, OneNode(0), NodeTopology((0,), (0,)), source, 0)
    stream = StreamReader(ring, 0, poll=producer.step)
    plan = StreamPlan(1, 0, 0, (0,), (0,))
    stream.begin(plan, Position(0))
    producer.start(plan)
    for start in (Position(0), Position(1)):
        ids = source.ids_of_pass(start.pass_index)
        first, last = sorted((data.draw(st.integers(0, num)), data.draw(st.integers(0, num))))
        picked = data.draw(st.lists(st.integers(0, num - 1), unique=True, max_size=num).map(sorted))
        ranges = [(Selection(first, last), list(range(first, last))), (Selection.of(picked), picked)]
        for selection, chosen in ranges:
            for in_place in (True, False):
                batch = stream.read_selection(start.pass_index, selection, in_place=in_place)
                wanted = [i for i in ids[chosen].tolist() if i not in broken]
                assert batch.ids.tolist() == wanted
                parts = slices_of(batch, data.draw(st.integers(1, 4))) if wanted else ()
                seen = 0
                for part in parts:
                    for each, given_arrays in ((both[0], part.x), (both[1], part.y)):
                        by_name = each.unpacked(np.asarray(given_arrays))
                        for row, sample_id in enumerate(part.ids.tolist()):
                            expected = source.arrays(each, sample_id, start.pass_index)
                            for name, array in expected.items():
                                np.testing.assert_array_equal(by_name[name][row], array)
                                assert by_name[name].dtype == array.dtype
                    seen += len(part.ids)
                assert seen == len(wanted)
        stream.release(start.pass_index, num)
