"""A computation that may hang is found, and told once."""

from __future__ import annotations

from hpcbal.paramserver.coscheduling.subtasks import SubtaskQueue
from hpcbal.runtime.jobs.background import HangWatch


def test_only_one_long_computation_counts_not_many_short_ones() -> None:
    queue, watch = SubtaskQueue(places=2), HangWatch(timeout_s=10.0)

    def look(now_s: float) -> list[str]:
        return watch.look({job: queue.numbers[job] for job in queue.running}, now_s)

    queue.ask("long", 1)
    for second in range(11):  # as busy as the other, but with a computation each second
        queue.ask("busy", 2)
        assert look(float(second)) == []
        queue.leave("busy")
    assert look(10.5) == ["long"]
    assert look(30.0) == []
    queue.leave("long")
    assert look(40.0) == []
    queue.ask("long", 3)
    assert look(41.0) == []
    assert look(52.0) == ["long"]
