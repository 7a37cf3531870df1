"""Executors as people write them: all, a number, or ranks."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.cluster.roles import executors_of
from hpcbal.errors import InputError

RANKS = (1, 2, 3, 5, 6, 7)
"""Rank 4 is no executor."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", RANKS),
        (" all\n", RANKS),
        ("2", (1, 2)),
        ("6\n", RANKS),
        ("1-3", (1, 2, 3)),
        ("3-6", (3, 5, 6)),
        ("7, 2", (2, 7)),
        ("1-2,6-7,2", (1, 2, 6, 7)),
    ],
)
def test_a_text_names_executors(text: str, expected: tuple[int, ...]) -> None:
    assert executors_of(text, RANKS) == expected


@pytest.mark.parametrize(
    "text", ["", "1", "7,", "0-3", "3-1", "6-8", "two", "-2", "1.5", "3-4", "4-4", "1 2", "٣", "9" * 5000]
)
def test_anything_else_is_refused_with_what_is_allowed(text: str) -> None:
    allowed = "allowed: all, a number of executors from 2 to 6, or ranks of 1 to 7 such as 1-2,7"
    with pytest.raises(InputError, match=re.escape(allowed)):
        executors_of(text, RANKS)


@given(st.text("0123456789-, al\n", max_size=12))
def test_every_text_names_at_least_two_executors_or_is_refused(text: str) -> None:
    try:
        found = executors_of(text, RANKS)
    except InputError:
        return
    assert len(found) >= 2
    assert set(found) <= set(RANKS)
    assert list(found) == sorted(set(found))
