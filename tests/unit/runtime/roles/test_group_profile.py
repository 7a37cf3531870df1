"""Rates are measured on the first batch that holds a valid sample."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.dataplane.reader import Batch, StreamReader
from hpcbal.dataplane.stream import StreamSpec
from hpcbal.events.ensemble import DnnFailed, Event, GroupLeft, RateMeasured
from hpcbal.runtime.group.member import GroupMember
from hpcbal.runtime.roles import group_profile
from hpcbal.runtime.roles.group_profile import GroupProfile
from hpcbal.telemetry.streams.slices import SliceRecorder
from hpcbal.training.backend import LocalCollective, Sums

BATCH_SIZE = 4
SPEC = StreamSpec(10, 10, 5, SampleSpec.of((2,), "float64"), LabelSpec(), ring_bytes=2**16)


class Reader:
    """Ten training samples in order, some of them broken."""

    def __init__(self, broken: set[int]) -> None:
        self.valid = np.array([sample_id not in broken for sample_id in range(10)])
        self.released: list[int] = []
        self.ended = False

    def count_valid(self, pass_index: int, start: int, stop: int) -> int:
        return int(self.valid[start:stop].sum())

    def read(self, pass_index: int, start: int, stop: int) -> Batch:
        ids = start + np.flatnonzero(self.valid[start:stop])
        return Batch(ids, np.zeros((len(ids), 2)), np.zeros(len(ids), np.int64))

    def release(self, pass_index: int, position: int) -> None:
        self.released.append(position)

    def end(self) -> None:
        self.ended = True


class Replica:
    """Counts what it is trained on."""

    broken = None
    num_states = 0

    def __init__(self) -> None:
        self.trained: list[list[int]] = []
        self.first: list[float] = []

    @property
    def timed(self) -> list[list[int]]:
        """Steps until the weights were put back for the first time."""
        return self.trained[: self.trained.index([])] if self.trained else []

    def train_alone(self, batch: Batch) -> Sums:
        self.trained.append(batch.ids.tolist())
        self.first = [float(sample[0]) for sample in batch.x]
        return Sums(0.0, len(batch.ids))

    def evaluate(self, batch: Batch) -> Sums:
        return Sums(0.0, len(batch.ids))

    def state(self) -> dict[str, np.ndarray]:
        return {}

    def load_state(self, arrays: dict[str, np.ndarray]) -> None:
        assert arrays == {}
        self.trained.append([])  # from the beginning


class Wave:
    """Another group is warm, and timed, only after this one has asked so often."""

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.asked = {"warm": 0, "timed": 0}
        self.left = 0

    def all_warm(self) -> bool:
        return self._is_met("warm")

    def all_timed(self) -> bool:
        return self._is_met("timed")

    def leave(self, poll: Callable[[], None]) -> None:
        poll()
        self.left += 1

    def _is_met(self, meeting: str) -> bool:
        self.asked[meeting] += 1
        return self.asked[meeting] > self.patience


def profile(
    broken: set[int], wave: Wave | None = None, augment: tuple[str, ...] = ()
) -> tuple[Reader, Replica, list[Event]]:
    """Measure one DNN in a group of one rank; what it has read, trained on and reported."""
    wave = wave or Wave(patience=0)
    reader, replica, reported = Reader(broken), Replica(), []
    context = SimpleNamespace(
        config=SimpleNamespace(
            schedule=SimpleNamespace(profiling=SimpleNamespace(max_batches=3, timed_batches=2)), seed=1
        ),
        channel=SimpleNamespace(send=lambda rank, message: reported.append(message.event)),
        keep_in_touch=lambda doing: None,
        slices=SliceRecorder(0, enabled=False),
        send_slices=lambda: None,
    )
    member = SimpleNamespace(
        context=context,
        facts=SimpleNamespace(spec=SPEC),
        dnn=SimpleNamespace(name="a", batch_size=BATCH_SIZE, augment=augment),
        on_all_ranks=lambda doing, work: work(),
        collective=LocalCollective(),
        is_master=True,
        cache=SimpleNamespace(mark=lambda *args: None, drop=lambda name: None),
        load_together=lambda epochs, position: SimpleNamespace(replica=replica),
        failure_for_people=lambda error: error,
        world_rank=lambda error: 0,
    )
    GroupProfile(cast("GroupMember", member), cast("StreamReader", reader), serial=1, wave=wave).run()
    assert reader.ended
    assert wave.left == 1
    return reader, replica, reported


def test_a_whole_first_batch_is_taken():
    reader, replica, reported = profile(broken=set())
    assert replica.timed == [[0, 1, 2, 3]] * 3
    assert reader.released == []
    assert [type(event) for event in reported] == [RateMeasured, GroupLeft]


def test_holes_in_the_first_batch_are_left_out():
    _, replica, reported = profile(broken={0, 2, 3})
    assert replica.timed == [[1]] * 3
    assert isinstance(reported[0], RateMeasured)
    assert reported[0].samples_per_s > 0


def test_batches_without_a_valid_sample_are_passed_over_and_released():
    reader, replica, reported = profile(broken=set(range(9)))
    assert replica.timed == [[9]] * 3
    assert reader.released == [4, 8]
    assert [type(event) for event in reported] == [RateMeasured, GroupLeft]


def test_a_dnn_without_any_valid_sample_fails_and_says_so():
    reader, replica, reported = profile(broken=set(range(10)))
    assert replica.trained == []
    assert reader.released == [4, 8, 10]
    failed, left = reported
    assert failed == DnnFailed("a", "error", "all 10 training samples are broken", rank=0)
    assert left == GroupLeft("a")


def test_it_waits_for_the_wave_and_trains_on_until_all_are_timed():
    wave = Wave(patience=5)
    _, replica, reported = profile(broken=set(), wave=wave)
    assert wave.asked["warm"] == 6
    batch, begin_anew = [0, 1, 2, 3], []
    timed, untimed = [batch] * 3, [batch] * 3  # max_batches is 3
    assert replica.trained == [*timed, begin_anew, *untimed, begin_anew, *untimed, begin_anew]
    assert [type(event) for event in reported] == [RateMeasured, GroupLeft]


def test_a_failed_dnn_leaves_the_wave_too():
    wave = Wave(patience=5)
    _, _, reported = profile(broken=set(range(10)), wave=wave)
    assert [type(event) for event in reported] == [DnnFailed, GroupLeft]
    assert wave.asked == {"warm": 0, "timed": 0}


@pytest.mark.parametrize("takes_s", [1e6, 0.0])
def test_a_rate_is_at_most_that_of_augment(takes_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def augment(sample: np.ndarray, sample_id: int, moment: int) -> np.ndarray:
        return sample + 100 + sample_id

    monkeypatch.setattr(group_profile, "Augmentation", lambda *given: SimpleNamespace(apply=augment))
    measure = GroupProfile._augment
    monkeypatch.setattr(GroupProfile, "_augment", lambda self, batch: (measure(self, batch)[0], takes_s))
    _, replica, reported = profile(broken={1}, augment=("noise",))
    assert replica.first == [100.0, 102.0, 103.0]  # it trains on what it augments
    assert isinstance(reported[0], RateMeasured)
    assert (reported[0].samples_per_s == pytest.approx(3 / 1e6)) == (takes_s > 0)
