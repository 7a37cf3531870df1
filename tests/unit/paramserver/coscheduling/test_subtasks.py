"""The queues of a machine: one subtask at a time, in the order of tickets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.paramserver.coscheduling.subtasks import SubtaskQueue


def test_the_lowest_ticket_comes_next_whoever_asked_first() -> None:
    queue = SubtaskQueue()
    assert queue.ask("a", 1) == ["a"]
    assert queue.ask("c", 3) == []
    assert queue.ask("b", 2) == []
    assert queue.num_waiting == 2
    assert queue.leave("a") == ["b"]
    assert queue.leave("b") == ["c"]
    assert queue.leave("c") == []
    assert queue.running == []


def test_a_job_that_waits_may_leave() -> None:
    queue = SubtaskQueue()
    queue.ask("a", 1)
    queue.ask("b", 2)
    queue.ask("c", 3)
    assert queue.leave("b") == []
    assert queue.leave("a") == ["c"]


def test_as_many_run_as_there_are_places() -> None:
    queue = SubtaskQueue(places=2)
    assert queue.ask("a", 1) == ["a"]
    assert queue.ask("b", 2) == ["b"]
    assert queue.ask("c", 3) == []
    assert queue.leave("a") == ["c"]
    assert queue.running == ["b", "c"]


def test_a_job_has_one_subtask_at_a_time() -> None:
    queue = SubtaskQueue()
    queue.ask("a", 1)
    queue.ask("b", 2)
    for job in ("a", "b"):
        with pytest.raises(ValueError, match=f"job {job} asks again"):
            queue.ask(job, 3)


@given(st.integers(1, 3), st.lists(st.tuples(st.sampled_from("abcde"), st.booleans()), max_size=60))
def test_places_are_never_exceeded_and_never_idle_while_someone_waits(places, moves) -> None:
    queue, here = SubtaskQueue(places), set()
    for ticket, (job, _) in enumerate(moves):
        if job in here:
            here.discard(job)
            queue.leave(job)
        else:
            here.add(job)
            queue.ask(job, ticket)
        assert len(queue.running) == min(places, len(here))
        assert len(queue.running) + queue.num_waiting == len(here)
        assert set(queue.running) <= here
