"""Sizes, durations and percentages as people write them."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbal.config.schema.section import parse_bytes, parse_duration_s, percent_of


@pytest.mark.parametrize(
    ("value", "expected"),
    [("256MiB", 2**28), ("1.5 GiB", 3 * 2**29), ("2kb", 2000), ("64", 64), ("8B", 8), (64, 64), (None, None)],
)
def test_sizes(value: Any, expected: Any) -> None:
    assert parse_bytes(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"), [("01:30:00", 5400.0), ("100:00:01", 360001.0), (60, 60), (None, None)]
)
def test_durations(value: Any, expected: Any) -> None:
    assert parse_duration_s(value) == expected


@pytest.mark.parametrize(("text", "expected"), [("15%", 0.15), ("7.5 %", 0.075), ("0%", 0.0)])
def test_percentages(text: str, expected: float) -> None:
    assert percent_of(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["MiB", "5XB", "-5MB", "1e3", ""])
def test_text_that_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["1:00", "01:60:00", "1h", ""])
def test_text_that_is_not_a_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not HH:MM:SS"):
        parse_duration_s(text)


@pytest.mark.parametrize("text", ["15", "%", "x%", "-3%"])
def test_text_that_is_not_a_percentage_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a percentage"):
        percent_of(text)
