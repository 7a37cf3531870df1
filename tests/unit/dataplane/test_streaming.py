"""Writing past the caches gives what NumPy's assignment gives, whether it is built or not."""

from __future__ import annotations

import numpy as np
import pytest

from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.dataplane import streaming
from hpcbal.dataplane.slot import LINE_BYTES, Slot, SlotLayout

LARGE = streaming.MIN_BYTES


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of what goes past the caches, in bytes."""
    sizes: list[int] = []

    def copy(target: np.ndarray, source: np.ndarray) -> None:
        sizes.append(target.nbytes)
        target[...] = source

    monkeypatch.setattr(streaming, "_copy", copy)
    return sizes


def test_large_arrays_go_past_the_caches_and_small_ones_do_not(copies: list[int]):
    for num_bytes in (1, LARGE - 1, LARGE, 3 * LARGE):
        target = np.zeros(num_bytes, np.uint8)
        streaming.write(target, np.ones(num_bytes, np.uint8))
        assert target.all()
    assert copies == [LARGE, 3 * LARGE]


@pytest.mark.parametrize(
    "values",
    [
        np.arange(LARGE, dtype=np.uint8).reshape(64, -1).T,
        np.arange(2 * LARGE, dtype=np.uint8)[::2].reshape(-1, 64),
        np.arange(LARGE, dtype=np.int16).reshape(-1, 64) % 256,
        np.arange(64, dtype=np.uint8),
        np.uint8(7),
    ],
    ids=["transposed", "strided", "other-type", "broadcast", "scalar"],
)
def test_what_cannot_be_copied_byte_by_byte_is_left_to_numpy(copies: list[int], values: np.ndarray):
    target = np.zeros((LARGE // 64, 64), np.uint8)
    streaming.write(target, values)
    expected = np.zeros_like(target)
    expected[...] = values
    np.testing.assert_array_equal(target, expected)
    assert copies == []


def test_a_target_with_gaps_is_left_to_numpy(copies: list[int]):
    memory = np.zeros((LARGE, 2), np.uint8)
    streaming.write(memory[:, 0], np.ones(LARGE, np.uint8))
    assert memory.sum(axis=0).tolist() == [LARGE, 0]
    assert copies == []


def test_without_the_compiled_copy_numpy_writes_all(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(streaming, "_copy", None)
    assert streaming.method() == "NumPy"
    target = np.zeros(LARGE, np.float32)
    streaming.write(target, np.arange(LARGE, dtype=np.float32))
    assert target.tolist() == list(range(LARGE))


def test_a_shape_that_does_not_fit_is_an_error():
    with pytest.raises(ValueError, match="could not broadcast"):
        streaming.write(np.zeros(LARGE, np.uint8), np.zeros(LARGE + 1, np.uint8))


def make_slot(layout: SlotLayout, is_shared: bool) -> Slot:
    raw = np.zeros(layout.num_bytes + LINE_BYTES, np.uint8)
    shift = -raw.ctypes.data % LINE_BYTES
    return Slot(layout, raw[shift : shift + layout.num_bytes], is_shared)


@pytest.mark.parametrize("shape", [(64, 64), (None, 64)], ids=["static", "ragged"])
def test_a_slot_writes_large_samples_past_the_caches(copies: list[int], shape: tuple[int | None, ...]):
    slot = make_slot(SlotLayout.of(2, SampleSpec.of(shape, "uint8", LARGE), LabelSpec()), is_shared=True)
    slot.begin(1, 0, np.arange(2))
    samples = [np.full((64, 64), index, np.uint8) for index in range(2)]
    for index, sample in enumerate(samples):
        slot.put(index, sample, np.int64(index))
    held = [slot.x[i] if slot.x.size else slot.sample(i) for i in range(2)]
    np.testing.assert_array_equal(held, samples)
    assert copies == [LARGE, LARGE]


def test_a_block_of_small_samples_goes_past_the_caches_as_a_whole(copies: list[int]):
    slot = make_slot(SlotLayout.of(8, SampleSpec.of((LARGE // 8,), "uint8"), LabelSpec()), is_shared=True)
    slot.begin(1, 0, np.arange(8))
    samples = np.arange(LARGE, dtype=np.uint8).reshape(8, -1)
    slot.put_many(0, samples, np.arange(8))
    np.testing.assert_array_equal(slot.x, samples)
    assert copies == [LARGE]


@pytest.mark.parametrize("shape", [(64, 64), (None, 64)], ids=["static", "ragged"])
def test_memory_that_no_other_process_reads_is_written_plainly(
    copies: list[int], shape: tuple[int | None, ...]
):
    slot = make_slot(SlotLayout.of(2, SampleSpec.of(shape, "uint8", LARGE), LabelSpec()), is_shared=False)
    slot.begin(1, 0, np.arange(2))
    slot.put(0, np.ones((64, 64), np.uint8), np.int64(0))
    held = slot.x[0] if slot.x.size else slot.sample(0)
    assert held.all()
    assert copies == []
