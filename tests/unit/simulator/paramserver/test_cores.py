"""Work that shares the cores of a host: times by hand, and no work is lost."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.simulator.paramserver.clock import NS_PER_S, Clock, Cores


def done_s(cores: float, works: list[tuple[float, float]]) -> list[float]:
    """When each work is done, of (begin, seconds)."""
    clock = Clock()
    host, ended_s = Cores(clock, cores), [math.nan] * len(works)

    def begin(index: int, seconds: float) -> None:
        waits: list[Callable[[], bool]] = []

        def look() -> None:
            if not waits or waits[0]():
                ended_s[index] = clock.now_s

        waits += host.work(str(index), seconds, look)
        if not waits:
            look()

    for index, (begin_s, seconds) in enumerate(works):
        clock.at(round(begin_s * NS_PER_S), partial(begin, index, seconds))
    clock.run(lambda: False)
    return ended_s


@pytest.mark.parametrize(
    ("cores", "works", "ended_s"),
    [
        (2, [(0, 1)], [1]),
        (2, [(0, 1), (0, 1)], [1, 1]),
        (2, [(0, 1), (0, 1), (0, 1)], [1.5, 1.5, 1.5]),
        (1, [(0, 2), (1, 2)], [3, 4]),  # alone for 1 s, half of a core each for 2 s, alone again
        (2, [(0, 2), (0, 2), (1, 1), (1, 2)], [3, 3, 3, 4]),
        (math.inf, [(0, 1), (0, 2), (0.5, 1)], [1, 2, 1.5]),
        (1, [(0, 0), (1, 1)], [0, 2]),
    ],
)
def test_work_is_done_when_it_has_had_its_share(
    cores: float, works: list[tuple[float, float]], ended_s: list[float]
) -> None:
    assert done_s(cores, works) == [pytest.approx(each) for each in ended_s]


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.floats(0, 5), st.floats(0.01, 3)), min_size=1, max_size=8),
)
def test_no_work_is_faster_than_a_core_and_all_of_it_no_faster_than_all_cores(
    cores: int, works: list[tuple[float, float]]
) -> None:
    ended_s = done_s(cores, works)
    for (begin_s, seconds), end_s in zip(works, ended_s, strict=True):
        assert end_s >= begin_s + seconds - 1e-6
    first_s, total_s = min(begin_s for begin_s, _ in works), sum(seconds for _, seconds in works)
    assert max(ended_s) >= first_s + total_s / cores - 1e-6
    # Never idle while there is work: all of it on one core would not take longer.
    assert max(ended_s) <= max(begin_s for begin_s, _ in works) + total_s + 1e-6
