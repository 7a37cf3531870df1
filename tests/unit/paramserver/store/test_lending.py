"""Answers are copied for workers that take them slowly, and for nobody else."""

from __future__ import annotations

import pytest

from hpcbal.paramserver.store.server import SLOW_BYTES_PER_S, UNNOTICED_S, Lending

NUM_BYTES = 1_000_000
LIMIT_S = UNNOTICED_S + NUM_BYTES / SLOW_BYTES_PER_S


@pytest.mark.parametrize(
    ("seconds", "copies"), [(0.0, False), (LIMIT_S * 0.99, False), (LIMIT_S * 1.01, True)]
)
def test_who_takes_an_answer_slowly_gets_a_copy_next_time(seconds: float, copies: bool) -> None:
    lending = Lending(may_copy=True)
    assert not lending.copies(3)
    lending.taken(3, NUM_BYTES, seconds)
    assert lending.copies(3) == copies
    assert not lending.copies(4)


def test_who_has_become_fast_is_lent_to_again() -> None:
    lending = Lending(may_copy=True)
    lending.taken(3, NUM_BYTES, 10.0)
    lending.taken(4, NUM_BYTES, 10.0)
    lending.taken(3, NUM_BYTES, 0.0)
    assert not lending.copies(3)
    assert lending.copies(4)


def test_with_a_barrier_nothing_is_copied() -> None:
    lending = Lending(may_copy=False)
    lending.taken(3, NUM_BYTES, 10.0)
    assert not lending.copies(3)
