"""Ranks that meet within a step all leave it, whichever rank fails, and reach the same conclusion."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbal.training.groups import NonFiniteError
from hpcbal.training.step_exchange import StepExchange

TIMEOUT_S = 20.0


@dataclass
class Meeting:
    """The sums of threads."""

    size: int
    rows: dict[int, np.ndarray] = field(default_factory=dict)
    num_meetings: int = 0

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.size, timeout=TIMEOUT_S)


@dataclass
class ThreadRank:
    """A rank that is a thread; if others wait for it in vain, it breaks the barrier for all."""

    meeting: Meeting
    rank: int

    @property
    def size(self) -> int:
        return self.meeting.size

    def exchange(self, numbers: np.ndarray) -> None:
        self.meeting.rows[self.rank] = numbers.copy()
        self.meeting.num_meetings += self.rank == 0
        self.meeting.barrier.wait()
        total = sum(self.meeting.rows[rank] for rank in range(self.size))
        self.meeting.barrier.wait()
        numbers[:] = total

    def sum(self, tensors: Sequence[Any], status: np.ndarray) -> Any:
        raise AssertionError("the step's own all-reduce is not for here")

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


def together(
    size: int, work: Callable[[int, StepExchange], Any], length: int = 3, *, may_overflow: bool = False
) -> tuple[list[Any], Meeting]:
    """Call `work` on each of `size` ranks, with its step begun, and return the results."""
    meeting = Meeting(size)

    def run(rank: int) -> Any:
        exchange = StepExchange(length, may_overflow=may_overflow)
        exchange.begin(ThreadRank(meeting, rank))
        result = work(rank, exchange)
        assert not exchange.is_open
        return result

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size))), meeting


def test_an_overflow_on_the_way_back_fails_nobody_if_the_loss_is_scaled() -> None:
    """The others add zeros for that rank; it keeps its own numbers, by which it knows."""

    def work(rank: int, exchange: StepExchange) -> Any:
        assert exchange.sum(np.array([1.0, rank]), 1).tolist() == [2.0, 1.0]
        summed = exchange.sum(np.array([np.inf if rank == 0 else 5.0, 1.0]), 2, is_gradient=True)
        assert exchange.end() is None
        return summed.tolist()

    results, meeting = together(2, work, may_overflow=True)
    assert results == [[np.inf, 1.0], [5.0, 1.0]]
    assert meeting.num_meetings == 3


def test_a_sum_on_the_way_forward_may_never_overflow() -> None:
    def work(rank: int, exchange: StepExchange) -> Any:
        exchange.sum(np.array([np.inf if rank == 0 else 5.0]), 1)
        return type(exchange.end())

    results, _ = together(2, work, may_overflow=True)
    assert results == [NonFiniteError, type(None)]


def test_ranks_without_samples_add_nothing_and_leave_with_the_others() -> None:
    def work(rank: int, exchange: StepExchange) -> Any:
        if rank == 2:
            exchange.follow()
            return exchange.end()
        sums = [exchange.sum(np.array([1.0, rank]), 1), exchange.sum(np.array([10.0 + rank]), 2)]
        assert exchange.end() is None
        return [array.tolist() for array in sums]

    results, meeting = together(3, work)
    assert results == [[[2.0, 1.0], [21.0]], [[2.0, 1.0], [21.0]], None]
    assert meeting.num_meetings == 3


def test_a_step_in_which_no_rank_has_samples_ends_at_once() -> None:
    def work(rank: int, exchange: StepExchange) -> Exception | None:
        exchange.follow()
        return exchange.end()

    results, meeting = together(2, work)
    assert results == [None, None]
    assert meeting.num_meetings == 1


def test_numbers_that_are_not_finite_fail_on_the_rank_that_has_them() -> None:
    def work(rank: int, exchange: StepExchange) -> Exception | None:
        exchange.sum(np.array([np.nan if rank else 1.0]), 1)
        exchange.sum(np.ones(3), 2)  # returned unchanged
        return exchange.end()

    (first, second), meeting = together(2, work)
    assert first is None
    assert isinstance(second, NonFiniteError)
    assert meeting.num_meetings == 1


def test_consequences_of_another_ranks_failure_are_not_reported_as_own() -> None:
    def work(rank: int, exchange: StepExchange) -> Exception | None:
        if rank == 0:
            return exchange.end(MemoryError("full"))
        exchange.sum(np.ones(3), 1)
        return exchange.end(NonFiniteError("computed from nothing"))

    (first, second), _ = together(2, work)
    assert isinstance(first, MemoryError)
    assert second is None


@pytest.mark.parametrize("places", [([1], [1, 2]), ([], [1]), ([1, 2, 3], [1]), ([1, 2], [2, 1])])
def test_models_that_differ_are_an_error_on_all_ranks(places: tuple[list[int], list[int]]) -> None:
    def work(rank: int, exchange: StepExchange) -> Exception | None:
        if rank == 2:
            exchange.follow()
        else:
            for place in places[rank]:
                exchange.sum(np.ones(2), place)
        return exchange.end()

    errors, _ = together(3, work)
    assert ["must be the same on all ranks" in str(error) for error in errors] == [True] * 3


def test_waiting_is_measured_per_step() -> None:
    gate = threading.Event()

    def work(rank: int, exchange: StepExchange) -> float:
        if rank == 1:
            gate.wait(0.05)  # no rank opens it: this rank is late
        exchange.end()
        waited_s = exchange.waited_s
        exchange.begin(ThreadRank(Meeting(1), 0))
        assert exchange.waited_s == 0.0
        exchange.end()
        return waited_s

    (early_s, late_s), _ = together(2, work)
    assert early_s > late_s


@st.composite
def steps(draw: st.DrawFn) -> tuple[int, list[str], list[int]]:
    """How many sums a step has, what each rank does, and where the failing ones fail."""
    size, num_sums = draw(st.integers(1, 5)), draw(st.integers(0, 4))
    kinds = draw(
        st.lists(st.sampled_from(["computes", "empty", "fails", "nan"]), min_size=size, max_size=size)
    )
    places = draw(st.lists(st.integers(0, num_sums), min_size=size, max_size=size))
    return num_sums, kinds, places


@given(steps())
@settings(max_examples=30, deadline=None)
def test_all_ranks_leave_and_each_failure_is_reported_by_its_rank(
    step: tuple[int, list[str], list[int]],
) -> None:
    num_sums, kinds, places = step

    def work(rank: int, exchange: StepExchange) -> Exception | None:
        kind = kinds[rank]
        if kind == "empty":
            exchange.follow()
            return exchange.end()
        for place in range(num_sums):
            if kind == "fails" and place == places[rank]:
                break
            bad = kind == "nan" and place == places[rank]
            total = exchange.sum(np.full(3, np.nan if bad else 1.0), place + 1)
            if exchange.is_open:
                assert total.tolist() == [float(sum(k != "empty" for k in kinds))] * 3
        if kind == "fails":
            return exchange.end(RuntimeError("bug"))
        return exchange.end()

    errors, _ = together(len(kinds), work)
    # A NaN at the place of the end counts as none, and only the first failures are seen before all leave.
    ends = [
        num_sums if kind == "computes" or (kind == "nan" and place == num_sums) else place
        for kind, place in zip(kinds, places, strict=True)
        if kind != "empty"
    ]
    for kind, place, error in zip(kinds, places, errors, strict=True):
        fails = kind == "fails" or (kind == "nan" and place < num_sums)
        if not fails or place > min(ends):
            assert error is None
        else:
            assert isinstance(error, RuntimeError if kind == "fails" else NonFiniteError)
