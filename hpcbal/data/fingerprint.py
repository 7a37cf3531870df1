"""Fingerprints of data: of their structure, and for large files also of a bounded part of their content."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_SEPARATOR = "."


def with_content(structure: str, content: str) -> str:
    """Join both parts; checkpoints of earlier versions, and many datasets, have only the first."""
    return f"{structure}{_SEPARATOR}{content}" if content else structure


def is_same_data(one: str, other: str) -> bool:
    """Whether two fingerprints are equal in all that both of them cover."""
    return all(a == b or not a or not b for a, b in zip(_parts(one), _parts(other), strict=True))


def covers_content(fingerprint: str) -> bool:
    """Whether a fingerprint has the second part."""
    return bool(_parts(fingerprint)[1])


def evenly(length: int, most: int) -> Sequence[int]:
    """Return at most `most` of the numbers 0..length-1, spread evenly, in an order whose start is, too."""
    chosen = np.unique(np.linspace(0, length - 1, min(length, most)).round().astype(np.int64)).tolist()
    return [each for first in range(8) for each in chosen[first::8]]


def _parts(fingerprint: str) -> tuple[str, str]:
    structure, _, content = fingerprint.partition(_SEPARATOR)
    return structure, content
