"""How a trainer group fails: all ranks together, with a cause for people and for the scheduler."""

from __future__ import annotations

from typing import Literal

from hpcbal.errors import HpcbalError
from hpcbal.user_code import report

Cause = Literal["error", "oom", "nan"]

CAUSES: tuple[Cause, ...] = ("error", "oom", "nan")
"""In order of precedence, if ranks of one group fail differently in the same step."""


USER_ERRORS = BaseException
"""What a user's model may raise, such as `asyncio.CancelledError`; it ends only its own DNN, not the job.

A real Ctrl-C raises nothing in a rank: a handler records it, and the run stops after the step."""


def as_exception(error: BaseException) -> Exception:
    """`error`, or an Exception that names it if it is none (a model that calls `sys.exit`)."""
    if isinstance(error, Exception):
        return error
    wrapped = RuntimeError(f"{type(error).__name__} was raised: {error}")
    wrapped.__cause__ = error
    return wrapped


class NonFiniteError(HpcbalError):
    """A loss or a gradient is NaN or infinite."""


class GroupFailed(HpcbalError):  # noqa: N818  (an event of the group, not a mistake)
    """Raised on every rank of a trainer group if any of them failed; no update was applied.

    Attributes:
        cause: 'error' (an exception), 'oom' (out of memory) or 'nan' (a loss or gradient is not finite).
        detail: for people; on the failing rank it contains the traceback.
        local: whether it happened on this rank.
        rank: rank of the group where it happened; -1: not known on this rank.
    """

    def __init__(self, cause: Cause, detail: str, local: bool, rank: int = -1) -> None:
        self.cause: Cause = cause
        self.detail = detail
        self.local = local
        self.rank = rank
        super().__init__(cause, detail, local, rank)

    def __str__(self) -> str:
        where = "on this rank" if self.local else "in the trainer group"
        return f"{self.cause} {where}: {self.detail}"


def cause_of(error: BaseException) -> Cause:
    """The cause that is reported for an exception.

    Backends turn their library's out-of-memory errors into `MemoryError`, so that no other code has to know
    them.
    """
    if isinstance(error, GroupFailed):
        return error.cause
    if isinstance(error, MemoryError):
        return "oom"
    if isinstance(error, NonFiniteError):
        return "nan"
    return "error"


def detail_of(error: BaseException) -> str:
    """Text for people: the message of our own errors; of all others one line, and below it the traceback."""
    return error.detail if isinstance(error, GroupFailed) else report(error)
