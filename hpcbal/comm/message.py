"""The base of every control message."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """A small frozen value that is pickled on its way; a message never contains arrays."""
