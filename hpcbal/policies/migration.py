"""Decide which samples move from slower to faster workers, so that all are used about equally often."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from hpcbal.policies.batching.rounding import apportion
from hpcbal.policies.partitioning import Partition, Samples, begun_anew

_CHOICE = 0x30FE
"""Separates the random stream from others with the same seed."""

_SURELY_BELOW = 1 - 1e-6
"""Below this share of the limit, floating-point numbers decide; only above it an exact comparison."""


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """Samples that move from one worker to another.

    Attributes:
        samples: int64, ascending, at least one.
    """

    sender: int
    receiver: int
    samples: Samples


@dataclass(frozen=True, slots=True, eq=False)
class Migration:
    """Moves that happen together; each sample moves at most once."""

    moves: tuple[Move, ...]

    @property
    def num_samples(self) -> int:
        return sum(len(move.samples) for move in self.moves)


def traversal_gap(partition: Partition) -> Fraction:
    """How many more traversals of its part the fastest worker has completed than the slowest.

    Source: [LBBSP] Sec. 3.5.
    """
    times = [Fraction(drawn, size) for drawn, size in zip(partition.drawn, partition.sizes, strict=True)]
    return max(times) - min(times)


def plan_migration(partition: Partition, max_gap: Fraction | float, seed: int) -> Migration | None:
    """Choose the samples to move; None while the workers' traversals differ by at most `max_gap`.

    Afterwards each part has as many samples as its worker has drawn since the last migration. At the same
    speeds, all workers then traverse their parts at the same pace, and no further migration is needed.

    Args:
        max_gap: traversals, > 0; compared exactly, so that all workers reach the same decision.
        seed: seed of the run, >= 0; chooses the samples together with the partition's number.

    Returns: a migration of at least one sample that leaves each worker at least one.
    Source: [LBBSP] Sec. 3.5 and footnote 5, which limits the gap to 2. The paper does not say how many
        samples move, or which: here as many as make the pace equal, drawn at random, so that the
        remaining part is a random sample of the whole part.
    """
    times = [drawn / size for drawn, size in zip(partition.drawn, partition.sizes, strict=True)]
    if max(times) - min(times) < _SURELY_BELOW * max_gap or traversal_gap(partition) <= Fraction(max_gap):
        return None
    goal = apportion(sum(partition.sizes), partition.drawn, minima=[1] * partition.num_parts)
    moves = tuple(_moves(partition, goal, seed))
    return Migration(moves) if moves else None


def migration_to(partition: Partition, owner: npt.NDArray[np.int64]) -> Migration | None:
    """The moves that give the samples these owners; None if none moves.

    Args:
        owner: part of each training sample, shape (num_samples,); `NO_PART` where it has none now.
    """
    changed = np.flatnonzero(owner != partition.owner)
    ways = sorted({(int(partition.owner[i]), int(owner[i])) for i in changed.tolist()})
    moves = tuple(
        Move(a, b, changed[(partition.owner[changed] == a) & (owner[changed] == b)]) for a, b in ways
    )
    return Migration(moves) if moves else None


def migrate(partition: Partition, migration: Migration) -> Partition:
    """Apply a migration to a partition; the statistics start again."""
    owner = partition.owner.copy()
    for move in migration.moves:
        owner[move.samples] = move.receiver
    return begun_anew(partition, owner)


def _moves(partition: Partition, goal: Sequence[int], seed: int) -> Iterator[Move]:
    """Moves that change the sizes to `goal`: the slowest worker gives to the fastest first."""
    times = [Fraction(drawn, size) for drawn, size in zip(partition.drawn, partition.sizes, strict=True)]
    change = [wanted - size for wanted, size in zip(goal, partition.sizes, strict=True)]
    senders = sorted((i for i, number in enumerate(change) if number < 0), key=lambda i: (times[i], i))
    receivers = sorted((i for i, number in enumerate(change) if number > 0), key=lambda i: (-times[i], i))
    for sender in senders:
        words = np.random.SeedSequence((seed, _CHOICE, partition.number, sender))
        leaving = np.random.Generator(np.random.PCG64(words)).permutation(partition.members(sender))
        leaving = leaving[: -change[sender]]
        while len(leaving):
            receiver = receivers[0]
            samples, leaving = leaving[: change[receiver]], leaving[change[receiver] :]
            change[receiver] -= len(samples)
            if not change[receiver]:
                receivers.pop(0)
            yield Move(sender, receiver, np.sort(samples))
