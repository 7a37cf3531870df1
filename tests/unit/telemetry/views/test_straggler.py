"""The rank that all others wait for is named with the reason; noise is ignored."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hpcbal.events.history import RankFacts, Straggler
from hpcbal.telemetry.views.summary import balancing_would_save, find_straggler

SLOTS = (4, 5, 6)


def ranks_of(*rows: Sequence[float]) -> RankFacts:
    return RankFacts(*map(tuple, rows))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wait_s", "compute_s", "collective_s", "expected"),
    [
        ([0.0, 0.0, 0.0], [1.0, 3.0, 1.0], [2.1, 0.1, 2.1], Straggler(5, "compute", 2.0)),
        ([0.0, 0.0, 2.0], [1.0, 1.0, 1.0], [2.1, 2.1, 0.1], Straggler(6, "input", 2.0)),
        ([3.0, 3.0, 3.0], [1.0, 1.0, 2.0], [1.1, 1.1, 0.1], Straggler(6, "compute", 1.0)),
        ([0.0, 0.0, 0.0], [1.0, 1.01, 1.0], [4.0, 4.0, 4.0], Straggler(None, "collective", 4.0)),
        ([0.0, 0.0, 0.0], [1.0, 1.05, 1.0], [0.1, 0.1, 0.1], None),
        ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0], None),
    ],
)
def test_straggler_and_reason(
    wait_s: list[float], compute_s: list[float], collective_s: list[float], expected: Straggler | None
) -> None:
    ranks = ranks_of(wait_s, compute_s, collective_s, [8] * 3, compute_s)
    assert find_straggler(ranks, SLOTS) == expected


@pytest.mark.parametrize(
    ("compute_s", "samples", "expected"),
    [
        ([1.0, 1.0], [100, 100], 0.0),
        ([1.0, 2.0], [100, 100], (2.0 - 200 / 150) / 2.0),  # even shares on unlike slots
        ([2.0, 2.0], [200, 100], 0.0),  # balanced ones on the same
        ([2.0, 2.0], [0, 0], 0.0),
        ([0.0, 0.0], [0, 0], 0.0),
    ],
)
def test_what_balancing_would_save(compute_s: list[float], samples: list[int], expected: float) -> None:
    collective_s = [max(compute_s) - seconds for seconds in compute_s]
    ranks = ranks_of([0.0] * 2, compute_s, collective_s, samples, compute_s)
    assert balancing_would_save(ranks) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("wait_s", "worked_s", "expected"),
    [
        ([96.0, 64.0], [128.0, 128.0], 0.0),  # fetched ahead: all are as fast as they preprocess
        ([128.0, 128.0], [160.0, 192.0], 1.0 - (64 / (32 / 160 + 32 / 192)) / 192),  # one after the other
    ],
)
def test_ranks_that_preprocess_their_own_samples_are_as_fast_as_that_leaves_them(
    wait_s: list[float], worked_s: list[float], expected: float
) -> None:
    """Two ranks compute 1 and 2 ms on a sample, and preprocess it for 4 ms."""
    compute_s, samples = [32.0, 64.0], [32, 32]
    last_s = max(wait + compute for wait, compute in zip(wait_s, compute_s, strict=True))
    collective_s = [last_s - wait - compute for wait, compute in zip(wait_s, compute_s, strict=True)]
    saves = balancing_would_save(ranks_of(wait_s, compute_s, collective_s, samples, worked_s))
    assert saves == pytest.approx(expected)
