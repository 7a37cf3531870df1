"""Times in files: UTC, ISO 8601, milliseconds."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def utc_text(unix_s: float | None = None) -> str:
    """`unix_s` (default: now) as text, like 2025-01-31T12:00:00.000Z."""
    moment = datetime.fromtimestamp(time.time() if unix_s is None else unix_s, tz=UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def unix_seconds(text: str) -> float:
    """The inverse of `utc_text`.

    Raises:
        ValueError: if `text` is not a time in that format.
    """
    return datetime.fromisoformat(text).timestamp()


def duration_text(seconds: float) -> str:
    """A duration for users: 0:00:41, 12:03:07."""
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
