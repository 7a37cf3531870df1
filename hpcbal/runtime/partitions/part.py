"""One rank's part of partitioned data during training, and in checkpoints."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.comm.backoff import Backoff
from hpcbal.comm.group_comm import GroupComm, PieceExchange
from hpcbal.data.dataset import HeldSamples
from hpcbal.dataplane.sample_transfer import SampleTransfer
from hpcbal.errors import CheckpointError
from hpcbal.policies.partitioning import (
    Migration,
    Partition,
    after_step,
    migrate,
    plan_migration,
    traversal_gap,
)
from hpcbal.runtime.group.replicas import PARTITION_PREFIX

log = logging.getLogger(__name__)


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


class Parts:
    """Partitioned data of a trainer group, as one of its ranks sees it.

    All ranks know all shares of each step. So they know how far each rank has traversed its part, and plan
    the same migrations without a message. A migration follows from the counts at the end of a pass's training
    steps. Samples move while the pass is validated; the rest of them move before the next pass begins, which
    draws from the new parts. So when samples move does not depend on the clock, nor on whether the run was
    stopped in between.

    Steps are planned up to one step before they are performed; a checkpoint holds `performed`, with the parts
    before a migration until the next pass has begun.

    Args:
        pieces: carries samples between the ranks of the group; closed at the end.
        held: this rank's raw samples, by id.
        train_ids: ids of the training samples, by index.
        partition: the initial partition; this rank holds its part of it.
        max_gap: number of traversals that the fastest rank may be ahead of the slowest; None: samples never
            move.
        seed: the run's seed.
        poll: called repeatedly while waiting for samples.

    Attributes:
        performed: the partition after the last performed step.
        num_migrations, num_moved: number of finished migrations and of the samples they moved, over the
            whole group.

    Source: [LBBSP] Sec. 3.5 and footnote 5. Deviations: no manager process that collects the traversals;
        migrations between passes only.
    """

    def __init__(
        self,
        pieces: PieceExchange,
        held: HeldSamples,
        train_ids: NDArray[np.int64],
        partition: Partition,
        max_gap: float | None,
        seed: int,
        poll: Callable[[], None],
    ) -> None:
        self.held = held
        self.performed = partition
        self.num_migrations = self.num_moved = 0
        self._pieces = pieces
        self._train_ids = train_ids
        self._planned = partition
        self._under_way: deque[Partition] = deque()
        self._max_gap = max_gap
        self._seed = seed
        self._poll = poll
        self._is_decided = False  # whether a migration after the last planned step has been decided on
        self._migration: Migration | None = None
        self._transfer: SampleTransfer | None = None

    @property
    def rank(self) -> int:
        """Rank in the group, which is also the index of this rank's part."""
        return self._pieces.rank

    def plan_step(self, shares: tuple[int, ...]) -> Partition:
        """Plan a training step with these shares; called at the same moments on all ranks.

        Returns: the partition from which the ranks draw the step.
        """
        before = self._planned
        self._planned = after_step(before, shares)
        self._under_way.append(self._planned)
        self._is_decided = False
        return before

    def step_performed(self) -> None:
        """Record that the next planned training step has been performed."""
        self.performed = self._under_way.popleft()

    def move_samples(self) -> None:
        """Plan a migration after the last training step of a pass, and move some of its samples at each call.

        Called at the same moments on all ranks, while nothing reads samples.
        """
        if not self._is_decided:
            self._is_decided = True
            self._migration = self._decide()
            if self._migration is not None:
                self._begin_migration(self._migration)
        if self._transfer is not None:
            self._transfer.step()

    def begin_pass(self) -> None:
        """Wait for the samples of a migration, and draw from the new parts; called as `move_samples`.

        Each rank waits for its own samples only. The steps of the pass let the ranks meet.
        """
        self.move_samples()
        if self._transfer is None:
            return
        backoff = Backoff()
        while not self._transfer.is_done:
            if self._transfer.step():
                backoff.reset()
            self._poll()
            backoff.wait()
        self._finish_migration()

    def close(self) -> None:
        """Abandon a running migration, whose samples stay where they were, and close `pieces`; collective."""
        if self._transfer is not None:
            self._transfer.abandon()
            log.info("a running migration was abandoned; its samples stay where they were")
        self._transfer = self._migration = None
        self._pieces.close()

    def facts(self) -> dict[str, Any]:
        """Facts for the ledger."""
        now = self.performed
        return {
            "sizes": list(now.sizes),
            "traversals": [round(drawn / size, 3) for drawn, size in zip(now.drawn, now.sizes, strict=True)],
            "gap": round(float(traversal_gap(now)), 3),
            "migrations": self.num_migrations,
            "moved": self.num_moved,
        }

    def _decide(self) -> Migration | None:
        """The migration after the last planned step, if any."""
        return None if self._max_gap is None else plan_migration(self._planned, self._max_gap, self._seed)

    def _begin_migration(self, migration: Migration) -> None:
        me = self._pieces.rank
        outgoing = {
            m.receiver: self._train_ids[m.samples].tolist() for m in migration.moves if m.sender == me
        }
        incoming = {m.sender: len(m.samples) for m in migration.moves if m.receiver == me}
        self._transfer = SampleTransfer(self._pieces, outgoing, incoming, self.held.read)
        if me == 0:
            log.info("%d samples move: %s", migration.num_samples, _text_of(migration))

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
        log.debug("migration %d is done, parts now hold %s", self._planned.number, self._planned.sizes)


def _text_of(migration: Migration) -> str:
    return ", ".join(
        f"{len(move.samples)} from rank {move.sender} to {move.receiver}" for move in migration.moves
    )
