"""What a host of parameter blocks asks its engine to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

A = TypeVar("A")
"""An access: whatever the engine keeps of a pull or push."""


class Answer(NamedTuple, Generic[A]):
    """Send a pull's worker the values of these blocks.

    If the pull lends, call `Host.sent` when the values have been read.
    """

    access: A
    blocks: Sequence[int]


class Apply(NamedTuple, Generic[A]):
    """Change these blocks by what was pushed, now, and acknowledge them to the push's worker."""

    access: A
    blocks: Sequence[int]


class Skip(NamedTuple, Generic[A]):
    """Drop what was pushed to these blocks: it came twice, and has been applied and acknowledged."""

    access: A
    blocks: Sequence[int]


class Forward(NamedTuple, Generic[A]):
    """Send these blocks' part of an access to another rank, which owns them or knows more."""

    access: A
    blocks: Sequence[int]
    destination: int


class Give(NamedTuple):
    """Send a block to its new owner: the news first, then the values with `applied`.

    Its values are not changed here any more. Forwards follow; they must not overtake the news.

    Attributes:
        applied: by worker, the number of its last push that is in the values.
    """

    block: int
    destination: int
    applied: Mapping[int, int]


class Took(NamedTuple):
    """Let the rank that gave a block know that it is here."""

    block: int
    source: int


class Moved(NamedTuple):
    """Report to the master that a block has a new owner."""

    block: int
    destination: int


Action = Answer[A] | Apply[A] | Skip[A] | Forward[A] | Give | Took | Moved
