"""Writing past the caches gives the same result as NumPy's assignment, whether it is built or not."""

from __future__ import annotations

import numpy as np
import pytest

from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.dataplane import nontemporal
from hpcbal.dataplane.slot import Slot, SlotLayout

LARGE = nontemporal.MIN_BYTES


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the arrays written past the caches, in bytes."""
    sizes: list[int] = []

    def copy(target: np.ndarray, source: np.ndarray) -> None:
        sizes.append(target.nbytes)
        target[...] = source

    monkeypatch.setattr(nontemporal, "_copy", copy)
    return sizes


def test_large_arrays_go_past_the_caches_and_small_ones_do_not(copies: list[int]):
    for num_bytes in (1, LARGE - 1, LARGE, 3 * LARGE):
        target = np.zeros(num_bytes, np.uint8)
        nontemporal.write(target, np.ones(num_bytes, np.uint8))
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
def test_arrays_that_cannot_be_copied_byte_by_byte_are_left_to_numpy(copies: list[int], values: np.ndarray):
    target = np.zeros((LARGE // 64, 64), np.uint8)
    nontemporal.write(target, values)
    expected = np.zeros_like(target)
    expected[...] = values
    np.testing.assert_array_equal(target, expected)
    assert copies == []


def test_a_target_with_gaps_is_left_to_numpy(copies: list[int]):
    memory = np.zeros((LARGE, 2), np.uint8)
    nontemporal.write(memory[:, 0], np.ones(LARGE, np.uint8))
    assert memory.sum(axis=0).tolist() == [LARGE, 0]
    assert copies == []


def test_without_the_compiled_copy_numpy_writes_all(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nontemporal, "_copy", None)
    assert nontemporal.method() == "NumPy"
    target = np.zeros(LARGE, np.float32)
    nontemporal.write(target, np.arange(LARGE, dtype=np.float32))
    assert target.tolist() == list(range(LARGE))


def test_a_shape_that_does_not_fit_is_an_error():
    with pytest.raises(ValueError, match="could not broadcast"):
        nontemporal.write(np.zeros(LARGE, np.uint8), np.zeros(LARGE + 1, np.uint8))


def make_slot(layout: SlotLayout, write: nontemporal.Copy = nontemporal.write) -> Slot:
    return Slot(layout, *Slot.private(layout).parts, write)


@pytest.mark.parametrize("shape", [(64, 64), (None, 64)], ids=["static", "ragged"])
def test_a_slot_writes_large_samples_with_the_given_function(
    copies: list[int], shape: tuple[int | None, ...]
):
    slot = make_slot(SlotLayout.of(2, SampleSpec.of(shape, "uint8", LARGE), LabelSpec()))
    slot.begin(1, 0, np.arange(2))
    samples = [np.full((64, 64), index, np.uint8) for index in range(2)]
    for index, sample in enumerate(samples):
        slot.put(index, sample, np.int64(index))
    held = [slot.x[i] if slot.x.size else slot.sample(i) for i in range(2)]
    np.testing.assert_array_equal(held, samples)
    assert copies == [LARGE, LARGE]


def test_a_block_of_small_samples_is_written_as_a_whole(copies: list[int]):
    slot = make_slot(SlotLayout.of(8, SampleSpec.of((LARGE // 8,), "uint8"), LabelSpec()))
    slot.begin(1, 0, np.arange(8))
    samples = np.arange(LARGE, dtype=np.uint8).reshape(8, -1)
    slot.put_many(0, samples, np.arange(8))
    np.testing.assert_array_equal(slot.x, samples)
    assert copies == [LARGE]


@pytest.mark.parametrize("shape", [(64, 64), (None, 64)], ids=["static", "ragged"])
def test_memory_that_no_other_process_reads_is_written_plainly(
    copies: list[int], shape: tuple[int | None, ...]
):
    slot = Slot.private(SlotLayout.of(2, SampleSpec.of(shape, "uint8", LARGE), LabelSpec()))
    slot.begin(1, 0, np.arange(2))
    slot.put(0, np.ones((64, 64), np.uint8), np.int64(0))
    held = slot.x[0] if slot.x.size else slot.sample(0)
    assert held.all()
    assert copies == []


class Machine:
    """A processor on which the two ways of writing take as long as a test says, with a matching clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, streaming_s: float, plain_s: float) -> None:
        self.now_s = 0.0
        self.streaming_s, self.plain_s = streaming_s, plain_s
        self.is_noisy = False
        self.streamed: list[bool] = []
        monkeypatch.setattr(nontemporal, "_copy", lambda *arrays: self._copy(True, *arrays))
        monkeypatch.setattr(nontemporal, "_plain_copy", lambda *arrays: self._copy(False, *arrays))

    def _copy(self, streams: bool, target: np.ndarray, values: np.ndarray) -> None:
        target[...] = values
        self.streamed.append(streams)
        # In every third write the process loses its core for a while.
        self.now_s += self.streaming_s if streams else self.plain_s
        if self.is_noisy and len(self.streamed) % 3 == 0:
            self.now_s += 1.0

    def clock(self) -> float:
        return self.now_s

    def write(self, writer: nontemporal.QuickerWrite, num_writes: int) -> list[bool]:
        """Which of them streamed; checks that each arrives."""
        self.streamed.clear()
        for i in range(num_writes):
            target = np.zeros(LARGE, np.uint8)
            writer(target, np.full(LARGE, i % 255 + 1, np.uint8))
            assert (target == i % 255 + 1).all()
        return list(self.streamed)


LAP = 50  # writes
NUM_TRIAL = 4 * LAP


@pytest.mark.parametrize("is_noisy", [False, True])
@pytest.mark.parametrize(("streaming_s", "plain_s", "streams"), [(1e-4, 7e-4, True), (1.8e-4, 1.3e-4, False)])
def test_the_faster_way_is_found_and_kept(
    monkeypatch: pytest.MonkeyPatch,
    streaming_s: float,
    plain_s: float,
    streams: bool,
    is_noisy: bool,
):
    machine = Machine(monkeypatch, streaming_s, plain_s)
    machine.is_noisy = is_noisy
    writer = nontemporal.QuickerWrite(LAP * LARGE, machine.clock)
    trial = machine.write(writer, NUM_TRIAL)
    assert trial == [True] * (2 * LAP) + [False] * (2 * LAP)
    assert set(machine.write(writer, 10 * LAP)) == {streams}


def test_both_ways_are_tried_again_and_a_change_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(nontemporal, "LAPS_KEPT", 5)
    caplog.set_level("INFO", logger=nontemporal.__name__)
    machine = Machine(monkeypatch, 1e-4, 7e-4)
    writer = nontemporal.QuickerWrite(LAP * LARGE, machine.clock)
    for _ in range(3):
        machine.write(writer, NUM_TRIAL + 5 * LAP)
        assert writer.streams
    machine.plain_s = 0.5e-4
    machine.write(writer, NUM_TRIAL + 5 * LAP)
    assert not writer.streams
    chosen = [message.split("with ")[1].split(" (")[0] for message in caplog.messages]
    assert chosen == ["streaming stores", "NumPy"]


def test_a_ring_of_few_large_blocks_gets_enough_laps(monkeypatch: pytest.MonkeyPatch):
    machine = Machine(monkeypatch, 2e-4, 1e-4)
    writer = nontemporal.QuickerWrite(2 * LARGE, machine.clock)
    trial = machine.write(writer, 2 * (2 + nontemporal.MIN_TIMES))
    assert trial.count(True) == trial.count(False) == 2 + nontemporal.MIN_TIMES
    assert set(machine.write(writer, 100)) == {False}


def test_a_large_ring_is_filled_before_the_trial_but_gets_no_whole_laps(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(nontemporal, "MAX_LAP_BYTES", LAP * LARGE)
    machine = Machine(monkeypatch, 2e-4, 1e-4)
    writer = nontemporal.QuickerWrite(1000 * LAP * LARGE, machine.clock)
    assert set(machine.write(writer, 999 * LAP)) == {True}
    assert machine.write(writer, NUM_TRIAL) == [True] * (2 * LAP) + [False] * (2 * LAP)
    assert set(machine.write(writer, 10 * LAP)) == {False}


def test_small_arrays_take_no_part_in_trials(monkeypatch: pytest.MonkeyPatch):
    machine = Machine(monkeypatch, 2e-4, 1e-4)
    writer = nontemporal.QuickerWrite(LARGE, machine.clock)
    for _ in range(1000):
        target = np.zeros(LARGE - 1, np.uint8)
        writer(target, np.ones(LARGE - 1, np.uint8))
        assert target.all()
    assert machine.streamed == []
    assert writer.streams
