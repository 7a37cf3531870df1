"""One rank's part of partitioned data while it trains: what it draws next, and what it gives and gets."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.held_samples import HeldSamples
from hpcbal.dataplane.sample_transfer import SampleTransfer
from hpcbal.errors import CheckpointError
from hpcbal.policies.migration import Migration, migrate, plan_migration, traversal_gap
from hpcbal.policies.partitioning import Partition, after_step
from hpcbal.runtime.group.saved_arrays import PARTITION_PREFIX

if TYPE_CHECKING:
    from mpi4py import MPI

log = logging.getLogger(__name__)

_OWNER, _DRAWN, _NUMBER = (PARTITION_PREFIX + name for name in ("owner", "drawn", "number"))


class Parts:
    """Partitioned data of a trainer group, as one of its ranks sees it.

    All ranks know all shares of each step, so they know how far each has gone through its part, and plan the
    same migrations at the same moments without a message. Samples then travel while training goes on; until
    they have all arrived, their sender goes on drawing them. That a rank has all it was to get, and got rid
    of all it was to give, rides in the all-reduce of a step. The step planned next after one in which all
    ranks said so is the first with the new parts.

    Steps are planned up to one step before they are performed; `performed` is what a checkpoint may hold.

    Args:
        comm: of the group, used for migrations only; freed at the end.
        held: this rank's samples, raw, by id.
        train_ids: ids of the training samples by number.
        partition: to begin with; this rank holds its part.
        max_gap: traversals that the fastest may be ahead of the slowest; None: no sample ever moves.
        seed: of the run.

    Attributes:
        performed: the partition after the last step that was performed.
        num_migrations, num_moved: finished ones, and the samples of them, over the whole group.

    Source: [LBBSP] Sec. 3.5 and footnote 5. Deviation: no manager process that collects the traversals.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        held: HeldSamples,
        train_ids: NDArray[np.int64],
        partition: Partition,
        max_gap: float | None,
        seed: int,
    ) -> None:
        self.held = held
        self.performed = partition
        self.num_migrations = self.num_moved = 0
        self._comm = comm
        self._train_ids = train_ids
        self._planned = partition
        self._under_way: deque[Partition] = deque()
        self._max_gap = max_gap
        self._seed = seed
        self._migration: Migration | None = None
        self._transfer: SampleTransfer | None = None
        self._is_everywhere = False

    @property
    def rank(self) -> int:
        """In the group, and of this rank's part."""
        return self._comm.rank

    def plan_step(self, shares: tuple[int, ...]) -> Partition:
        """Plan a training step with these shares; at the same moments on all ranks.

        The step before has been fetched, so nothing reads samples meanwhile.

        Returns: the partition that the ranks draw the step from.
        """
        if self._is_everywhere:
            self._finish_migration()
        before = self._planned
        self._planned = after_step(before, shares)
        self._under_way.append(self._planned)
        if self._migration is None and self._max_gap is not None:
            self._migration = plan_migration(self._planned, self._max_gap, self._seed)
            if self._migration is not None:
                self._begin_migration(self._migration)
        return before

    def report(self) -> float:
        """What this rank adds to a step's all-reduce: 1 if its side of the migration is done."""
        return float(self._transfer is not None and self._transfer.is_done)

    def take(self, num_done: float) -> None:
        """A training step has been performed, in which so many ranks said that they are done."""
        self.performed = self._under_way.popleft()
        if self._transfer is not None:
            self._transfer.step()
            self._is_everywhere = round(num_done) == self._comm.size

    def close(self) -> None:
        """End; a migration under way is undone, its samples stay where they were; collective."""
        if self._transfer is not None:
            self._transfer.abandon()
            log.info("a migration was under way; its samples stay where they were")
        self._transfer = self._migration = None
        self._comm.Free()

    def facts(self) -> dict[str, Any]:
        """For the ledger."""
        now = self.performed
        return {
            "sizes": list(now.sizes),
            "traversals": [round(drawn / size, 3) for drawn, size in zip(now.drawn, now.sizes, strict=True)],
            "gap": round(float(traversal_gap(now)), 3),
            "migrations": self.num_migrations,
            "moved": self.num_moved,
        }

    def _begin_migration(self, migration: Migration) -> None:
        me = self._comm.rank
        outgoing = {
            m.receiver: self._train_ids[m.samples].tolist() for m in migration.moves if m.sender == me
        }
        incoming = {m.sender: len(m.samples) for m in migration.moves if m.receiver == me}
        self._is_everywhere = False
        self._transfer = SampleTransfer(self._comm, outgoing, incoming, self.held.read)
        if me == 0:
            log.info("%d samples move: %s", migration.num_samples, _told(migration))

    def _finish_migration(self) -> None:
        migration, transfer = self._migration, self._transfer
        assert migration is not None
        assert transfer is not None
        for ids in transfer.outgoing.values():
            for sample_id in ids:
                self.held.drop(sample_id)
        for sample_id, raw, label in transfer.received:
            self.held.put(sample_id, raw, label)
        self._planned = migrate(self._planned, migration)
        self.num_migrations += 1
        self.num_moved += migration.num_samples
        self._migration = self._transfer = None
        self._is_everywhere = False
        log.debug("migration %d is done, parts now hold %s", self._planned.number, self._planned.sizes)


def _told(migration: Migration) -> str:
    return ", ".join(
        f"{len(move.samples)} from rank {move.sender} to {move.receiver}" for move in migration.moves
    )


def partition_arrays(partition: Partition) -> dict[str, NDArray[Any]]:
    """What a checkpoint holds of the partition."""
    return {
        _OWNER: partition.owner,
        _DRAWN: np.array(partition.drawn, np.int64),
        _NUMBER: np.array(partition.number, np.int64),
    }


def partition_of_arrays(arrays: Mapping[str, NDArray[Any]], num_samples: int) -> Partition | None:
    """The opposite of `partition_arrays`; None if the checkpoint holds no partition.

    Raises:
        CheckpointError: its arrays do not fit together, or the data.
    """
    if _OWNER not in arrays:
        return None
    try:
        owner, drawn, number = (arrays[name] for name in (_OWNER, _DRAWN, _NUMBER))
    except KeyError as error:
        raise CheckpointError(f"the checkpoint lacks {error} of the partition") from error
    if owner.shape != (num_samples,):
        raise CheckpointError(
            f"the checkpoint tells the parts of {owner.size} training samples, the data has {num_samples}"
        )
    return Partition.of(owner, drawn.tolist(), int(number))
