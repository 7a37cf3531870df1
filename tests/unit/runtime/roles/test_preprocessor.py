"""A preprocessor makes blocks while a stream runs, reports on them, and leaves when the run is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpcbal.comm.channel import Message
from hpcbal.dataplane.cache import SampleCache
from hpcbal.dataplane.cache_size import CacheNeed
from hpcbal.dataplane.maker import BatchMaker
from hpcbal.dataplane.producer import NodeTopology, Producer
from hpcbal.dataplane.reader import StreamReader
from hpcbal.dataplane.replication import OneNode
from hpcbal.dataplane.shared_memory import SharedMemory
from hpcbal.dataplane.stream import StreamPlan
from hpcbal.events.history import Position
from hpcbal.runtime.roles import preprocessor
from hpcbal.runtime.roles.preprocessor import Preprocessor
from hpcbal.runtime.wire.protocol import (
    EndStream,
    FillCache,
    Heartbeat,
    Leave,
    PreprocessorReport,
    Shutdown,
    StartStream,
    StopRequest,
    StreamEnded,
)

PREPROCESSOR = 1
PLAN = StreamPlan(generation=1, first_pass=0, first_block=0, producers=(PREPROCESSOR,), training_nodes=(0,))


class Floor:
    """The preprocessor plays in a thread; the test is the scheduler, and reads as a trainer does."""

    def __init__(self, ranks: Any) -> None:
        self.ranks = ranks
        self.channel = ranks.channels[0]
        self.reader = StreamReader(ranks.ring, 0, poll=self.check)
        ranks.play(PREPROCESSOR, ranks.preprocessor(PREPROCESSOR).run)

    def check(self) -> None:
        """Raises when the preprocessor has failed, or after a minute."""
        self.ranks.contexts[0].stop.take()

    def send(self, message: Message) -> None:
        self.channel.send(PREPROCESSOR, message)

    def next_of(self, kind: type[Message]) -> Any:
        """The next message of `kind`; others are passed over."""
        while True:
            source, message = self.channel.wait(self.check)
            assert source == PREPROCESSOR
            if isinstance(message, kind):
                return message

    def start(self, plan: StreamPlan = PLAN) -> None:
        self.reader.begin(plan, Position(plan.first_pass))
        self.send(StartStream(plan))

    def end(self, code: int = 0) -> None:
        self.send(Shutdown(code))
        self.ranks.join()
        assert self.ranks.codes == {PREPROCESSOR: code}


@pytest.fixture
def floor(make_ranks: Callable[..., Any]) -> Floor:
    return Floor(make_ranks())


def test_readers_get_the_samples_of_the_pass_in_its_order(floor: Floor) -> None:
    floor.start()
    batch = floor.reader.read(0, 0, 40)
    source = floor.ranks.source()
    assert batch.ids.tolist() == source.ids_of_pass(0)[:40].tolist()
    np.testing.assert_array_equal(batch.x[7], source.sample(int(batch.ids[7]), 0, True)[0])
    floor.reader.end()
    floor.end()


def test_a_stream_that_ends_is_reported_and_the_next_one_starts_where_it_should(floor: Floor) -> None:
    floor.start()
    floor.reader.read(0, 0, 16)
    floor.reader.end()
    floor.send(EndStream(1))
    report = floor.next_of(PreprocessorReport)
    assert report.samples_made >= 16
    assert report.busy_s > 0.0
    assert report.bad == ()
    assert floor.next_of(StreamEnded) == StreamEnded(1)
    floor.start(StreamPlan(2, first_pass=3, first_block=0, producers=(PREPROCESSOR,), training_nodes=(0,)))
    assert floor.reader.read(3, 0, 8).ids.tolist() == floor.ranks.source().ids_of_pass(3)[:8].tolist()
    floor.reader.end()
    floor.send(EndStream(2))
    assert floor.next_of(PreprocessorReport).samples_made >= report.samples_made + 8
    assert floor.next_of(StreamEnded) == StreamEnded(2)
    floor.end()


def test_all_that_was_put_into_the_cache_is_reported_when_the_run_ends(
    make_ranks: Callable[..., Any],
) -> None:
    ranks = make_ranks()
    source = ranks.source()
    need = CacheNeed.of(source)
    assert need is not None
    num_bytes = need.whole_bytes(1)
    cache = source.cache = SampleCache(SharedMemory.private(num_bytes), need, num_bytes)
    producer = Producer(ranks.ring, OneNode(PREPROCESSOR), NodeTopology((0, 0), (1,)), source, 0)
    role = Preprocessor(ranks.contexts[PREPROCESSOR], producer, BatchMaker(ranks.facts.spec, source))
    ranks.play(PREPROCESSOR, role.run)

    def num_held() -> int:
        return sum(not cache.is_missing(sample_id) for sample_id in range(need.num_ids))

    channel, made = ranks.channels[0], 0
    channel.send(PREPROCESSOR, FillCache(0))
    while num_held() < 5:
        ranks.contexts[0].stop.take()
    channel.send(PREPROCESSOR, EndStream(1))
    while True:
        _, message = channel.wait(lambda: ranks.contexts[0].stop.take())
        made = message.samples_made if isinstance(message, PreprocessorReport) else made
        if isinstance(message, StreamEnded):
            break
    assert made == num_held() >= 5
    channel.send(PREPROCESSOR, Shutdown(0))
    ranks.join()


def test_broken_samples_are_reported_once_and_leave_holes(make_ranks: Callable[..., Any]) -> None:
    data = {"dataset": "in_process_toys:points", "args": {"broken": 3}, "max_bad_fraction": 0.5}
    floor = Floor(make_ranks(data=data))
    floor.start()
    num_positions = floor.ranks.facts.spec.num_positions
    seen: list[int] = []
    for start in range(0, num_positions, 10):
        batch = floor.reader.read(0, start, min(start + 10, num_positions))
        seen += batch.ids.tolist()
        floor.reader.release(0, min(start + 10, num_positions))
    assert sorted(seen) == list(range(3, 60))
    floor.reader.end()
    floor.send(EndStream(1))
    bad = floor.next_of(PreprocessorReport).bad
    assert {sample_id for sample_id, _, _ in bad} == {0, 1, 2}
    assert {(where, "the point is broken" in reason) for _, where, reason in bad} == {
        (f"point {number}", True) for number in range(3)
    }
    assert floor.next_of(StreamEnded) == StreamEnded(1)
    floor.end()


def test_it_reports_while_the_stream_runs(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preprocessor, "REPORT_INTERVAL_S", 0.0)
    floor.start()
    floor.reader.read(0, 0, 8)
    assert floor.next_of(PreprocessorReport).samples_made >= 1
    floor.reader.end()
    floor.end()


def test_a_shutdown_in_the_middle_of_a_stream_ends_it_with_the_code(floor: Floor) -> None:
    floor.start()
    floor.reader.read(0, 0, 8)
    floor.end(75)


def test_a_signal_is_passed_on_to_the_scheduler_once(floor: Floor) -> None:
    floor.ranks.signal(PREPROCESSOR, "signal TERM")
    assert floor.next_of(StopRequest) == StopRequest("signal TERM at rank 1")
    floor.end(75)
    while (found := floor.channel.receive()) is not None:
        assert not isinstance(found[1], StopRequest)


def test_an_idle_preprocessor_shows_that_it_lives(floor: Floor) -> None:
    assert floor.next_of(Heartbeat) == Heartbeat("idle")
    floor.end()


def test_an_order_for_others_is_a_bug_of_ours(floor: Floor) -> None:
    floor.send(Leave(1, "converged"))
    with pytest.raises(TypeError, match=r"a preprocessor got Leave\("):
        floor.ranks.join()
