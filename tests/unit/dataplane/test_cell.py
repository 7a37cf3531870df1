"""One block in memory, with samples of equal or of different shape."""

from __future__ import annotations

import numpy as np
import pytest

from hpcbal.data.arrays import LINE_BYTES
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.dataplane.cell import Cell, CellLayout

SHAPES = [(1, 3), (5, 3), (2, 3), (4, 3)]


def test_static_samples_lie_contiguous_and_holes_are_marked():
    cell = Cell.private(CellLayout.of(4, SampleSpec.of((2, 3), "float32"), LabelSpec()))
    cell.begin(7, 11, np.array([5, 6, 8]))
    for index in (0, 2):
        cell.put(index, np.full((2, 3), index, np.float32), np.int64(index * 10))
    cell.finish()
    assert cell.valid.tolist() == [True, False, True, False]
    assert not cell.is_whole()
    assert cell.ids[:3].tolist() == [5, 6, 8]
    assert cell.x[2].tolist() == [[2.0] * 3] * 2
    assert cell.y[2] == 20
    assert cell.x.flags.c_contiguous
    assert cell.x.ctypes.data % LINE_BYTES == 0


def test_samples_of_unequal_shape_come_back():
    sample = SampleSpec.of((None, 3), "int16", 5 * 3 * 2)
    cell = Cell.private(CellLayout.of(4, sample, LabelSpec((2,), "int32")))
    arrays = [np.arange(np.prod(shape), dtype=np.int16).reshape(shape) + i for i, shape in enumerate(SHAPES)]
    cell.begin(1, 0, np.arange(4))
    for index, array in enumerate(arrays):
        cell.put(index, array, np.array([index, -index]))
    cell.finish()
    assert cell.is_whole()
    for index, array in enumerate(arrays):
        np.testing.assert_array_equal(cell.sample(index), array)


def test_message_holds_everything_but_the_unused_rest():
    layout = CellLayout.of(4, SampleSpec.of((None, 3), "int16", 3000), LabelSpec())
    sent, received = Cell.private(layout), Cell.private(layout)
    sent.begin(1, 0, np.arange(4))
    for index, shape in enumerate(SHAPES):
        sent.put(index, np.full(shape, index, np.int16), np.int64(index))
    sent.finish()
    memory, payload = sent.message()
    assert len(payload) < 4 * 48
    for part, sent_part in zip(received.parts, (memory, payload), strict=True):
        part[:] = 0
        part[: len(sent_part)] = sent_part
    assert [received.sample(i).shape for i in range(4)] == SHAPES
    assert received.ids.tolist() == [0, 1, 2, 3]


def test_full_blocks_of_the_largest_samples_fit():
    layout = CellLayout.of(3, SampleSpec.of((None,), "uint8", 17), LabelSpec())
    cell = Cell.private(layout)
    cell.begin(1, 0, np.arange(3))
    for index in range(3):
        cell.put(index, np.full(17, index, np.uint8), np.int64(0))
    cell.finish()
    assert [cell.sample(i).tolist() for i in range(3)] == [[i] * 17 for i in range(3)]
    assert len(cell.message()[1]) <= layout.payload_bytes


@pytest.mark.parametrize("label", [LabelSpec(), LabelSpec((3,), "float32"), LabelSpec((2, 2), "uint8")])
def test_labels_keep_shape_and_type(label: LabelSpec):
    cell = Cell.private(CellLayout.of(5, SampleSpec.of((1,), "uint8"), label))
    assert cell.y.shape == (5, *label.shape)
    assert cell.y.dtype == label.dtype
