"""Cores that several jobs use at once: closed forms, conservation of work, agreement with the simulator."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.paramserver.coscheduling.subtasks import EvenShares
from hpcbal.simulator.paramserver.clock import NS_PER_S, Clock, Cores


def ends_of(arrivals: list[tuple[float, float]]) -> list[float]:
    """When each of some subtasks ends, given when it begins and its work; looked at only when one begins."""
    shares, ends = EvenShares(), [0.0] * len(arrivals)
    order = sorted(range(len(arrivals)), key=lambda number: arrivals[number][0])

    def run_until(time: float) -> None:
        while shares.left and shares.until + shares.until_next_end <= time:
            before = dict(shares.left)
            shares.end_due(shares.until + shares.until_next_end)
            for job in before.keys() - shares.left.keys():
                ends[int(job)] = shares.until

    for number in order:
        begins, work = arrivals[number]
        run_until(begins)
        shares.begin(str(number), work, begins)
    run_until(float("inf"))
    return ends


def test_one_alone_takes_its_work() -> None:
    assert ends_of([(3.0, 2.5)]) == [pytest.approx(5.5)]


def test_n_that_begin_together_each_get_an_nth() -> None:
    # Of works 1, 2 and 3: one ends after 3 x 1, the next after another 2 x 1, the last after 1 more.
    assert ends_of([(0.0, 1.0), (0.0, 2.0), (0.0, 3.0)]) == pytest.approx([3.0, 5.0, 6.0])


def test_one_that_comes_later_slows_down_what_is_left() -> None:
    # Alone for 1, together until the second has had 1, and alone again.
    assert ends_of([(0.0, 4.0), (1.0, 1.0)]) == pytest.approx([5.0, 3.0])


def test_those_that_are_over_slow_down_nobody_even_if_nobody_has_looked() -> None:
    shares = EvenShares()
    shares.begin("a", 1.0, 0.0)
    shares.begin("b", 2.0, 0.0)
    shares.end_due(10.0)
    assert not shares.left
    shares.begin("c", 3.0, 10.0)
    shares.end_due(12.0)
    assert shares.left == {"c": pytest.approx(1.0)}


def test_one_that_leaves_gives_its_share_back() -> None:
    shares = EvenShares()
    shares.begin("a", 2.0, 0.0)
    shares.begin("b", 5.0, 0.0)
    shares.leave("b", 2.0)
    assert shares.left == {"a": pytest.approx(1.0)}
    assert shares.until_next_end == pytest.approx(1.0)
    shares.leave("b", 2.5)
    with pytest.raises(ValueError, match="job a begins while another one of it runs"):
        shares.begin("a", 1.0, 2.5)


ARRIVALS = st.lists(st.tuples(st.floats(0.0, 10.0), st.floats(1e-3, 10.0)), min_size=1, max_size=8)


@given(ARRIVALS)
def test_work_is_conserved(arrivals: list[tuple[float, float]]) -> None:
    ends = ends_of(arrivals)
    for (begins, work), end in zip(arrivals, ends, strict=True):
        assert begins + work * (1 - 1e-9) <= end <= begins + len(arrivals) * work * (1 + 1e-9)
    # Cores are used whenever a subtask is there, so they are used for the sum of all work.
    busy, free = 0.0, 0.0
    for begins, end in sorted((begins, end) for (begins, _), end in zip(arrivals, ends, strict=True)):
        busy += max(0.0, end - max(begins, free))
        free = max(free, end)
    assert busy == pytest.approx(sum(work for _, work in arrivals))


@given(ARRIVALS)
def test_the_simulator_agrees(arrivals: list[tuple[float, float]]) -> None:
    clock = Clock()
    ends = [0.0] * len(arrivals)
    cores = Cores(clock)

    def begin(number: int, work: float) -> None:
        waits = list(cores.work(str(number), work, lambda: ends.__setitem__(number, clock.now_s)))
        assert not waits[0]()

    for number, (begins, work) in enumerate(arrivals):
        clock.at(round(begins * NS_PER_S), partial(begin, number, work))
    clock.run(lambda: False)
    assert ends == pytest.approx(ends_of(arrivals), abs=1e-6)
