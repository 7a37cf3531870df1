"""A partition as arrays of a checkpoint, and as a message to the other ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.comm.group_comm import GroupComm
from hpcbal.errors import CheckpointError
from hpcbal.policies.partitioning import Partition
from hpcbal.runtime.group.saved_arrays import PARTITION_PREFIX

_OWNER, _DRAWN, _NUMBER, _LEFT = (PARTITION_PREFIX + name for name in ("owner", "drawn", "number", "left"))


def partition_arrays(partition: Partition) -> dict[str, NDArray[Any]]:
    """The partition as arrays for a checkpoint."""
    arrays: dict[str, NDArray[Any]] = {
        _OWNER: partition.owner,
        _DRAWN: np.array(partition.drawn, np.int64),
        _NUMBER: np.array(partition.number, np.int64),
    }
    return arrays if partition.left is None else {**arrays, _LEFT: partition.left.astype(np.uint8)}


def partition_of_arrays(arrays: Mapping[str, NDArray[Any]], num_samples: int) -> Partition | None:
    """The inverse of `partition_arrays`; None if the checkpoint holds no partition.

    Raises:
        CheckpointError: if its arrays do not fit each other or the data.
    """
    if _OWNER not in arrays:
        return None
    try:
        owner, drawn, number = (arrays[name] for name in (_OWNER, _DRAWN, _NUMBER))
    except KeyError as error:
        raise CheckpointError(f"the checkpoint lacks {error} of the partition") from error
    if owner.shape != (num_samples,):
        raise CheckpointError(
            f"the checkpoint holds a partition of {owner.size} training samples, but the data has "
            f"{num_samples}"
        )
    left = arrays.get(_LEFT)
    if left is not None and left.shape != owner.shape:
        raise CheckpointError(f"the checkpoint says of {left.size} samples, not {owner.size}, what is left")
    return Partition.of(owner, drawn.tolist(), int(number), None if left is None else left.astype(np.bool_))


def of_master(comm: GroupComm, mine: Partition | None, num_samples: int) -> Partition | None:
    """Broadcast the master's partition; collective. A rank in a new process has none of its own."""
    head = np.zeros(3, np.int64)
    if mine is not None:
        head[:] = mine.num_parts, mine.number, mine.left is not None
    comm.broadcast(head)
    num_parts, number, has_left = head.tolist()
    if not num_parts:
        return None
    owner, drawn = np.empty(num_samples, np.int32), np.empty(num_parts, np.int64)
    if comm.rank == 0:
        assert mine is not None
        owner[:], drawn[:] = mine.owner, mine.drawn
    comm.broadcast(owner)
    comm.broadcast(drawn)
    if not has_left:
        return Partition.of(owner, drawn.tolist(), number)
    left = np.zeros(num_samples, np.uint8)
    if mine is not None and mine.left is not None and comm.rank == 0:
        left[:] = mine.left
    comm.broadcast(left)
    return Partition.of(owner, drawn.tolist(), number, left.astype(np.bool_))
