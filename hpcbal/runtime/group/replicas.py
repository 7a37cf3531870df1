"""Keep replicas between rounds, because building and tracing a network takes longer than many steps."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from hpcbal.training.backend import Replica
from hpcbal.values import EpochRecord, Position

# Small networks all fit; a large network is dropped when the next one is built, to free its device memory.
DEFAULT_CAPACITY_BYTES = 512 * 2**20


@dataclass(frozen=True, slots=True)
class Moment:
    """A state of a DNN: after `epoch` epochs, and at stream position `position` if inside the next epoch."""

    epoch: int
    position: Position | None


UNTRAINED = Moment(epoch=0, position=None)
BUILT = Moment(epoch=-1, position=None)
"""A new replica whose initial weights have not been loaded yet."""


@dataclass
class _Entry:
    replica: Replica
    moment: Moment | None
    history: tuple[EpochRecord, ...]


class ReplicaCache:
    """This rank's replicas by DNN; evicts the least recently used when they exceed a number of bytes."""

    def __init__(self, capacity_bytes: int = DEFAULT_CAPACITY_BYTES) -> None:
        self._capacity_bytes = capacity_bytes
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def get(self, dnn_id: str) -> Replica | None:
        entry = self._entries.get(dnn_id)
        if entry is None:
            return None
        self._entries.move_to_end(dnn_id)
        return entry.replica

    def moment(self, dnn_id: str) -> Moment | None:
        """The state that the replica holds; None if unknown."""
        entry = self._entries.get(dnn_id)
        return None if entry is None else entry.moment

    def history(self, dnn_id: str) -> tuple[EpochRecord, ...]:
        """The records of the epochs that led to the replica's state."""
        return self._entries[dnn_id].history

    def put(self, dnn_id: str, replica: Replica) -> None:
        """Keep the new `replica` and evict others beyond the capacity; the newest always stays."""
        self._entries[dnn_id] = _Entry(replica, BUILT, ())
        self._entries.move_to_end(dnn_id)
        while len(self._entries) > 1 and self._num_bytes() > self._capacity_bytes:
            _, oldest = self._entries.popitem(last=False)
            oldest.replica.close()

    def mark(self, dnn_id: str, moment: Moment | None, history: tuple[EpochRecord, ...] = ()) -> None:
        """Record which state the replica of `dnn_id` holds now; None while it is being trained."""
        entry = self._entries[dnn_id]
        entry.moment, entry.history = moment, history

    def drop(self, dnn_id: str) -> None:
        entry = self._entries.pop(dnn_id, None)
        if entry is not None:
            entry.replica.close()

    def clear(self) -> None:
        for dnn_id in list(self._entries):
            self.drop(dnn_id)

    def _num_bytes(self) -> int:
        return sum(entry.replica.num_bytes for entry in self._entries.values())
