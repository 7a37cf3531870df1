"""Trainer groups: formed and dissolved with the rounds, and how all their ranks fail together."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import numpy as np

from hpcbal.comm.group_comm import GroupComm
from hpcbal.errors import CheckpointError, HpcbalError
from hpcbal.training.backend import GradientCollective, Replica
from hpcbal.training.weights import Arrays, checksum
from hpcbal.user_code import report


class TrainerGroups(Protocol):
    """The current trainer groups. A group is a tuple of ranks of the trainer communicator.

    The first rank of a group is its master: rank 0 of its collective and of its communicator.
    """

    def open(self, groups: Sequence[tuple[int, ...]]) -> None:
        """Close the earlier groups and form these; collective over ALL trainers.

        Args:
            groups: the same on all trainers, also on those in no group; no rank occurs twice.
        """

    def comm_of(self, group: tuple[int, ...]) -> GroupComm:
        """The group's small collectives; only for its members."""

    def collective_of(self, group: tuple[int, ...]) -> GradientCollective:
        """The collective that sums the group's gradients; only for its members."""

    def open_one(self, group: tuple[int, ...]) -> None:
        """Form a group with this rank beside others; collective over its members only."""

    def close_one(self, group: tuple[int, ...]) -> None:
        """Dissolve a group that `open_one` has formed; collective over its members."""

    def close_all(self) -> None:
        """Dissolve the groups; collective over ALL trainers."""

    def shutdown(self) -> None:
        """Dissolve the groups and end the library; collective over ALL trainers, once."""


def check_groups(groups: Sequence[tuple[int, ...]], num_trainers: int) -> None:
    """Refuse groups that overlap or hold ranks that do not exist.

    Raises:
        ValueError: names the groups; they come from our own plan, so this is a bug of ours.
    """
    members = [rank for group in groups for rank in group]
    if not all(groups) or len(set(members)) != len(members) or not set(members) <= set(range(num_trainers)):
        raise ValueError(
            f"trainer groups {list(groups)}: each of 0..{num_trainers - 1} at most once, none empty"
        )


Cause = Literal["error", "oom", "nan"]

CAUSES: tuple[Cause, ...] = ("error", "oom", "nan")
"""In order of precedence, if ranks of one group fail differently in the same step."""


USER_ERRORS = BaseException
"""Errors that a user's model may raise, such as `asyncio.CancelledError`; they end only its own DNN.

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


DETAIL_BYTES = 2000
"""How much of a failure's detail is sent: its first line, and as much of the end as fits."""

_GAP = b"\n[...]\n"
_NO_FAILURE = 255


def agree(comm: GroupComm, error: Exception | None = None, poll: Callable[[], None] | None = None) -> None:
    """Learn whether any rank of the group failed; collective over the group.

    Args:
        comm: communicator of the group.
        error: what went wrong on this rank, if anything. A `GroupFailed` is passed on with its detail, so
            that after a failed step the master can learn from the failing rank what happened.
        poll: called repeatedly while other ranks are missing.

    Raises:
        GroupFailed: on all ranks, with rank, cause and detail of the first rank that failed; a failed rank
            raises its own.
    """
    mine = np.zeros(1 + DETAIL_BYTES, np.uint8)
    mine[0] = _NO_FAILURE
    if error is not None and (not isinstance(error, GroupFailed) or error.local):
        detail = shortened(error.detail if isinstance(error, GroupFailed) else detail_of(error))
        mine[0] = CAUSES.index(cause_of(error))
        mine[1 : 1 + len(detail)] = np.frombuffer(detail, np.uint8)
    everyone = comm.all_gather(mine, poll)
    failed = np.flatnonzero(everyone[:, 0] != _NO_FAILURE)
    if comm.rank in failed and error is not None:
        raise GroupFailed(cause_of(error), detail_of(error), local=True, rank=comm.rank) from error
    if failed.size:
        cause: Cause = CAUSES[everyone[failed[0], 0]]
        text = everyone[failed[0], 1:].tobytes().rstrip(b"\0").decode("utf-8", errors="replace")
        where = int(failed[0])
        raise GroupFailed(cause, f"rank {where} of the group: {text}", local=False, rank=where)
    if error is not None:
        raise error


def shortened(detail: str) -> bytes:
    """At most `DETAIL_BYTES`: the first line, and the end, which is more useful than the middle."""
    encoded = detail.encode("utf-8", errors="replace")
    if len(encoded) <= DETAIL_BYTES:
        return encoded
    first = encoded.partition(b"\n")[0]
    if len(first) + len(_GAP) >= DETAIL_BYTES:
        first = first[: DETAIL_BYTES // 2]
    return first + _GAP + encoded[len(first) + len(_GAP) - DETAIL_BYTES :]


def share_state(comm: GroupComm, replica: Replica) -> bool:
    """Give all ranks the master's weights and optimizer state; collective over the group.

    Compares checksums first, so that equal replicas (the normal case: initial weights depend only on the
    seed) send 4 bytes per rank. If they differ, rank 0's arrays are sent: after a checkpoint that only the
    master read, or if a user's model draws its weights from another source.

    Args:
        comm: communicator of the group.
        replica: built from the same config on all ranks.

    Returns:
        Whether arrays had to be sent.

    Raises:
        GroupFailed: on all ranks, if the arrays do not fit the model on some rank.
    """
    arrays = replica.state()
    everyone = comm.all_gather(np.array(checksum(arrays), np.uint32))
    if np.all(everyone == everyone[0]):
        return False
    received = _broadcast(comm, arrays)
    error: Exception | None = None
    try:
        replica.load_state(received)
    except CheckpointError as misfit:
        error = CheckpointError(f"the ranks of the group built different models: {misfit}")
    except Exception as failure:  # agree reports it to the peers
        error = failure
    agree(comm, error)
    return True


def _broadcast(comm: GroupComm, arrays: Arrays) -> Arrays:
    """Return rank 0's arrays on every rank: a pickled table of contents, then one buffer of bytes."""
    contents = pickle.dumps([(name, a.shape, a.dtype.str) for name, a in arrays.items()])
    lengths = np.array([len(contents), sum(a.nbytes for a in arrays.values())], np.int64)
    comm.broadcast(lengths)
    header, payload = np.empty(lengths[0], np.uint8), np.empty(lengths[1], np.uint8)
    if comm.rank == 0:
        header[:] = np.frombuffer(contents, np.uint8)
        parts = [np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in arrays.values()]
        np.concatenate(parts or [np.empty(0, np.uint8)], out=payload)
    comm.broadcast(header)
    comm.broadcast(payload)
    received: Arrays = {}
    start = 0
    for name, shape, dtype in pickle.loads(header.tobytes()):
        stop = start + int(np.prod(shape)) * np.dtype(dtype).itemsize
        received[name] = payload[start:stop].view(dtype).reshape(shape)
        start = stop
    return received
