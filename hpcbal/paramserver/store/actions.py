"""Events of a host of parameter blocks, and the actions that it asks of its engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

A = TypeVar("A")
"""An access: whatever the engine keeps of a pull or push."""


class BlockAccess(NamedTuple, Generic[A]):
    """One block of a pull or push.

    Attributes:
        number: pull: of the worker's last push; push: its own.
        lends: of a pull; None: it is a push.
    """

    access: A
    worker: int
    block: int
    number: int
    lends: bool | None


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


def add_action(actions: list[Action[A]], action: Answer[A] | Apply[A] | Skip[A] | Forward[A]) -> None:
    """Add an action for one block; blocks of an access that need the same share one action."""
    last = actions[-1] if actions else None
    if (
        isinstance(last, Answer | Apply | Skip | Forward)
        and type(last) is type(action)
        and last.access is action.access
        and last[2:] == action[2:]
        and isinstance(last.blocks, list)
    ):
        last.blocks.extend(action.blocks)
        return
    actions.append(action)
