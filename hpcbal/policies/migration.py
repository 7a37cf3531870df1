"""Decide which samples move from slower to faster workers, so that all are seen about equally often."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from hpcbal.policies.batching.rounding import apportion
from hpcbal.policies.partitioning import Partition, Samples, begun_anew

_CHOICE = 0x30FE
"""Sets the random stream apart from others of the same seed."""

_SURELY_BELOW = 1 - 1e-6
"""Floating-point numbers tell quickly what needs no exact comparison, which is nearly always."""


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """Samples that go from one worker to another.

    Attributes:
        samples: int64, ascending, at least one.
    """

    sender: int
    receiver: int
    samples: Samples


@dataclass(frozen=True, slots=True, eq=False)
class Migration:
    """Moves that happen together; each sample moves once at most."""

    moves: tuple[Move, ...]

    @property
    def num_samples(self) -> int:
        return sum(len(move.samples) for move in self.moves)


def traversal_gap(partition: Partition) -> Fraction:
    """How many times more the fastest worker has gone through its part than the slowest.

    Source: [LBBSP] Sec. 3.5.
    """
    times = [Fraction(drawn, size) for drawn, size in zip(partition.drawn, partition.sizes, strict=True)]
    return max(times) - min(times)


def plan_migration(partition: Partition, max_gap: Fraction | float, seed: int) -> Migration | None:
    """The samples to move, or None while the workers' traversals differ by no more than `max_gap`.

    Afterwards the parts are as large as what their workers have drawn since the last migration: with the
    speeds of that time, all go on through their parts at the same pace, and no further migration is needed.

    Args:
        max_gap: traversals, > 0; compared exactly, so that all workers decide alike.
        seed: of the run, >= 0; together with the partition's number it chooses the samples.

    Returns: a migration of at least one sample that leaves each worker one at least.
    Source: [LBBSP] Sec. 3.5 and footnote 5, which bounds the gap by 2. The paper does not tell how many
        samples move, or which: here those that make the pace even, drawn at random, so that what stays is
        as the whole part was.
    """
    times = [drawn / size for drawn, size in zip(partition.drawn, partition.sizes, strict=True)]
    if max(times) - min(times) < _SURELY_BELOW * max_gap or traversal_gap(partition) <= Fraction(max_gap):
        return None
    goal = apportion(sum(partition.sizes), partition.drawn, minima=[1] * partition.num_parts)
    moves = tuple(_moves(partition, goal, seed))
    return Migration(moves) if moves else None


def migrate(partition: Partition, migration: Migration) -> Partition:
    """The partition after a migration; its statistics begin anew."""
    owner = partition.owner.copy()
    for move in migration.moves:
        owner[move.samples] = move.receiver
    return begun_anew(partition, owner)


def _moves(partition: Partition, goal: Sequence[int], seed: int) -> Iterator[Move]:
    """Moves that bring the sizes to `goal`: the slowest worker gives to the fastest first."""
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
