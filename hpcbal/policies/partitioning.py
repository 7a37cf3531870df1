"""Assign training samples to workers, choose which they draw next, and move some to faster workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from hpcbal.errors import PolicyError
from hpcbal.policies.batching import split_evenly
from hpcbal.policies.batching.min_max import apportion

Samples = npt.NDArray[np.int64]
"""Training samples by number, 0..num_samples-1."""

DEALING_RULES = ("random", "contiguous", "by_class")
NO_PART = -1
"""Owner of a sample that is unusable."""

_DEALING, _ORDER = 0xDEA1, 0x04DE4
"""Separate the random streams from each other and from others with the same seed."""


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Which worker holds which samples, and how far each has traversed its part.

    Attributes:
        owner: part of each training sample, or `NO_PART`; int32, shape (num_samples,), never changed.
        sizes: samples of each part.
        drawn: samples that each worker has drawn since `number` last changed, counting repetitions.
        number: grows each time samples change owners; orders are then drawn again.
        left: which samples are still to be drawn in this pass, bool, shape (num_samples,), never changed, if
            each is drawn once per pass; None if parts are traversed on and on.
    """

    owner: npt.NDArray[np.int32]
    sizes: tuple[int, ...]
    drawn: tuple[int, ...]
    number: int
    left: npt.NDArray[np.bool_] | None = None

    @classmethod
    def of(
        cls,
        owner: npt.NDArray[np.int32],
        drawn: Sequence[int],
        number: int,
        left: npt.NDArray[np.bool_] | None = None,
    ) -> Partition:
        """Make the partition with these owners; it has its own arrays.

        Args:
            owner: shape (num_samples,), -1..num_parts-1.
            drawn: one count >= 0 per part.
            number: >= 0.
            left: see the attribute.

        Raises:
            PolicyError: if an owner is not a part, or a part has no sample.
        """
        kept = np.array(owner, np.int32)
        if len(kept) and not NO_PART <= kept.min() <= kept.max() < len(drawn):
            raise PolicyError(
                f"parts: got {kept.min()}..{kept.max()} as owners, allowed: -1..{len(drawn) - 1}"
            )
        sizes = np.bincount(kept[kept >= 0], minlength=len(drawn)).tolist()
        if not sizes or min(sizes) < 1:
            raise PolicyError(
                f"parts: got sizes {sizes}, allowed: at least one usable sample for each worker; use fewer "
                "workers, or bring more samples"
            )
        kept.flags.writeable = False
        return cls(kept, tuple(sizes), tuple(int(count) for count in drawn), number, left)

    @property
    def num_parts(self) -> int:
        return len(self.sizes)

    def members(self, part: int) -> Samples:
        """The samples of a part in ascending order."""
        return np.flatnonzero(self.owner == part).astype(np.int64)


def deal_parts(
    num_samples: int,
    num_parts: int,
    rule: str,
    seed: int,
    labels: Sequence[int] | npt.NDArray[np.int64] | None = None,
    number: int = 0,
    broken: npt.NDArray[np.bool_] | None = None,
) -> Partition:
    """Give each worker an equal part of the samples, and of the broken samples among them.

    Args:
        num_samples: number of samples.
        num_parts: workers, 1..num_samples.
        rule: random: shuffled; contiguous: in the order of the samples; by_class: sorted by label, so that
            each worker sees only few classes.
        seed: seed of the run, >= 0; used only by `random`.
        labels: labels of all samples, for `by_class`.
        number: number of the partition.
        broken: which samples are known to be unusable, shape (num_samples,); their labels are ignored. They
            are assigned last, one to each worker in turn, so that no part is empty without them if there are
            enough other samples. None: nothing is known.

    Returns: parts whose sizes differ by at most one, also without the broken samples; nothing drawn yet.
    Raises: PolicyError: if there are more parts than samples, the rule is unknown, or labels are missing.
    """
    if not 1 <= num_parts <= num_samples:
        raise PolicyError(
            f"parts: got {num_parts} workers for {num_samples} training samples, allowed: at least one "
            "sample for each worker; use fewer workers, or bring more samples"
        )
    if rule == "random":
        order = _generator(seed, _DEALING, number).permutation(num_samples)
    elif rule == "contiguous":
        order = np.arange(num_samples)
    elif rule == "by_class":
        if labels is None or len(labels) != num_samples:
            raise PolicyError(f"by_class needs a label for each of {num_samples} samples")
        order = np.argsort(labels, kind="stable")
    else:
        raise PolicyError(f"data.partition: got {rule!r}, allowed: {', '.join(DEALING_RULES)}")
    if broken is None:
        broken = np.zeros(num_samples, np.bool_)
    whole, others = order[~broken[order]], order[broken[order]]
    owner = np.empty(num_samples, np.int32)
    owner[whole] = np.repeat(np.arange(num_parts), split_evenly(len(whole), num_parts))
    owner[others] = np.arange(len(whole), num_samples) % num_parts  # continue where the larger parts end
    return Partition.of(owner, [0] * num_parts, number)


def without_samples(partition: Partition, unusable: npt.NDArray[np.bool_]) -> Partition:
    """The same parts without the unusable samples.

    Args:
        unusable: shape (num_samples,).

    Raises: PolicyError: if a part would be empty.
    """
    if not unusable.any():
        return partition
    owner = np.where(unusable, NO_PART, partition.owner)
    return Partition.of(owner, partition.drawn, partition.number, partition.left)


def with_all_samples(partition: Partition) -> Partition:
    """The same parts with the samples that had no owner: the user may have repaired them."""
    unowned = np.flatnonzero(partition.owner == NO_PART)
    if not len(unowned):
        return partition
    owner = partition.owner.copy()
    owner[unowned] = np.arange(len(unowned)) % partition.num_parts
    return Partition.of(owner, partition.drawn, partition.number, partition.left)


def begun_anew(partition: Partition, owner: npt.NDArray[np.int32]) -> Partition:
    """The successor of `partition` with new owners: nothing is drawn yet, and orders are new.

    In the middle of a pass, the caller adds what is left of it.
    """
    return Partition.of(owner, [0] * partition.num_parts, partition.number + 1)


def after_step(partition: Partition, shares: Sequence[int]) -> Partition:
    """The partition after each worker has drawn its share of a step."""
    drawn = tuple(count + share for count, share in zip(partition.drawn, shares, strict=True))
    return replace(partition, drawn=drawn, left=None)


def after_draw(partition: Partition, drawn: Sequence[Samples]) -> Partition:
    """The partition after each worker has drawn these samples of its part, as the only time in this pass.

    Args:
        drawn: numbers of training samples, by worker.
    """
    left = np.ones(len(partition.owner), np.bool_) if partition.left is None else partition.left.copy()
    left[np.concatenate([np.zeros(0, np.int64), *drawn])] = False
    return replace(after_step(partition, [len(own) for own in drawn]), left=left)


def spans_of_draw(size: int, drawn: int, num_samples: int) -> list[tuple[int, int, int]]:
    """Places of the next samples of a part: (traversal, first, last) in the orders of its traversals.

    Args:
        size: size of the part, >= 1.
        drawn: samples drawn from it so far.
        num_samples: samples to draw now, >= 0; may be more than the part holds.

    Returns: spans first..last-1 that together hold `num_samples` places.
    """
    spans = []
    end = drawn + num_samples
    while drawn < end:
        traversal, first = divmod(drawn, size)
        last = min(size, first + end - drawn)
        spans.append((traversal, first, last))
        drawn += last - first
    return spans


def order_of_part(partition: Partition, part: int, traversal: int, seed: int) -> Samples:
    """The order of a worker's `traversal`-th pass through its part: each sample once.

    Args:
        traversal: >= 0, counted since the parts last changed.
        seed: seed of the run, >= 0.
    """
    generator = _generator(seed, _ORDER, partition.number, part, traversal)
    return generator.permutation(partition.members(part))


def _generator(*words: int) -> np.random.Generator:
    # PCG64 by name: `default_rng` may change its bit generator with a numpy release.
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


_CHOICE = 0x30FE
"""Separates the random stream from others with the same seed."""

_SURELY_BELOW = 1 - 1e-6
"""Below this share of the limit, floating-point numbers decide; only above it an exact comparison."""


@dataclass(frozen=True, slots=True, eq=False)
class SampleMove:
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

    moves: tuple[SampleMove, ...]

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
        SampleMove(a, b, changed[(partition.owner[changed] == a) & (owner[changed] == b)]) for a, b in ways
    )
    return Migration(moves) if moves else None


def migrate(partition: Partition, migration: Migration) -> Partition:
    """Apply a migration to a partition; the statistics start again."""
    owner = partition.owner.copy()
    for move in migration.moves:
        owner[move.samples] = move.receiver
    return begun_anew(partition, owner)


def _moves(partition: Partition, goal: Sequence[int], seed: int) -> Iterator[SampleMove]:
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
            yield SampleMove(sender, receiver, np.sort(samples))
