"""Samples in parts: none is ever lost or doubled, and one migration makes the pace even."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.errors import PolicyError
from hpcbal.policies.partitioning import (
    DEALING_RULES,
    NO_PART,
    Partition,
    after_step,
    deal_parts,
    migrate,
    order_of_part,
    plan_migration,
    spans_of_draw,
    traversal_gap,
    with_all_samples,
    without_samples,
)

SEEDS = st.integers(0, 2**32 - 1)
GAPS = st.sampled_from([0.25, 1.0, 2.0])


@st.composite
def dealt(draw: st.DrawFn, max_parts: int = 6) -> Partition:
    num_parts = draw(st.integers(1, max_parts))
    num_samples = draw(st.integers(num_parts, 60))
    rule = draw(st.sampled_from(DEALING_RULES))
    labels = draw(st.lists(st.integers(0, 3), min_size=num_samples, max_size=num_samples))
    return deal_parts(num_samples, num_parts, rule, draw(SEEDS), labels)


def check(partition: Partition, num_samples: int) -> None:
    """Each sample is in exactly one part, and none is empty."""
    members = [partition.members(part).tolist() for part in range(partition.num_parts)]
    assert sorted(sample for part in members for sample in part) == list(range(num_samples))
    assert [len(part) for part in members] == list(partition.sizes)
    assert min(partition.sizes) >= 1


def draws_of(partition: Partition, part: int, num_samples: int, seed: int) -> list[int]:
    spans = spans_of_draw(partition.sizes[part], partition.drawn[part], num_samples)
    return [
        sample
        for traversal, first, last in spans
        for sample in order_of_part(partition, part, traversal, seed)[first:last].tolist()
    ]


@given(dealt())
def test_parts_are_even(partition: Partition) -> None:
    check(partition, len(partition.owner))
    assert max(partition.sizes) - min(partition.sizes) <= 1
    assert partition.drawn == (0,) * partition.num_parts


def test_every_rule_assigns_samples_as_documented() -> None:
    labels = [2, 0, 1, 0, 2, 1]
    assert deal_parts(6, 3, "by_class", 1, labels).owner.tolist() == [2, 0, 1, 0, 2, 1]
    assert deal_parts(6, 2, "contiguous", 1).owner.tolist() == [0, 0, 0, 1, 1, 1]
    random = [deal_parts(60, 2, "random", seed).owner.tolist() for seed in (1, 1, 2)]
    assert random[0] == random[1] != random[2]


@given(st.integers(1, 6), st.sampled_from(DEALING_RULES), SEEDS, st.data())
def test_known_broken_samples_leave_no_part_empty(
    num_parts: int, rule: str, seed: int, data: st.DataObject
) -> None:
    num_samples = data.draw(st.integers(num_parts, 60))
    labels = data.draw(st.lists(st.integers(-1, 3), min_size=num_samples, max_size=num_samples))
    broken = np.array(labels) < 0
    partition = deal_parts(num_samples, num_parts, rule, seed, labels, broken=broken)
    check(partition, num_samples)
    assert max(partition.sizes) - min(partition.sizes) <= 1
    whole = np.bincount(partition.owner[~broken], minlength=num_parts)
    assert whole.max() - whole.min() <= 1
    if rule == "by_class":
        seen = [[labels[i] for i in partition.members(part) if not broken[i]] for part in range(num_parts)]
        in_order = [label for part in seen for label in sorted(part)]
        assert in_order == sorted(label for label in labels if label >= 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((2, 3, "random", 0), "at least one"),
        ((4, 2, "odd", 0), "contiguous"),
        ((4, 2, "by_class", 0), "label"),
    ],
)
def test_impossible_partitions_are_refused(arguments: tuple[int, int, str, int], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        deal_parts(*arguments)


@given(dealt(), SEEDS, st.lists(st.integers(0, 30), min_size=1, max_size=12))
def test_a_worker_goes_through_its_part_again_and_again(
    partition: Partition, seed: int, shares: list[int]
) -> None:
    """However draws are cut into steps, n traversals hold each sample n times, the next some once more."""
    for part in range(partition.num_parts):
        state, drawn = partition, []
        for share in shares:
            drawn += draws_of(state, part, share, seed)
            state = after_step(state, [share] * partition.num_parts)
        assert drawn == draws_of(partition, part, sum(shares), seed)
        traversals, rest = divmod(sum(shares), partition.sizes[part])
        counts = Counter(drawn)
        assert set(counts) <= set(partition.members(part).tolist())
        assert sum(counts[sample] > traversals for sample in counts) == rest
        assert all(counts[s] - traversals in (0, 1) for s in partition.members(part).tolist())


@given(dealt(), SEEDS, GAPS, st.data())
def test_no_sample_is_lost_or_duplicated(
    partition: Partition, seed: int, gap: float, data: st.DataObject
) -> None:
    num_samples = len(partition.owner)
    shares = st.lists(st.integers(0, 20), min_size=partition.num_parts, max_size=partition.num_parts)
    for step in data.draw(st.lists(shares, max_size=20)):
        partition = after_step(partition, step)
        migration = plan_migration(partition, gap, seed)
        assert (migration is None) or traversal_gap(partition) > gap
        if migration is None:
            continue
        for move in migration.moves:
            assert move.sender != move.receiver
            assert (partition.owner[move.samples] == move.sender).all()
        moved = np.concatenate([move.samples for move in migration.moves])
        assert len(np.unique(moved)) == len(moved) == migration.num_samples >= 1
        number, partition = partition.number, migrate(partition, migration)
        assert partition.number == number + 1
        assert traversal_gap(partition) == 0
        check(partition, num_samples)


@given(st.lists(st.integers(1, 12), min_size=2, max_size=5), st.integers(1, 3), SEEDS)
def test_steady_speeds_need_one_migration(shares: list[int], scale: int, seed: int) -> None:
    """Sizes follow the shares as far as the steps so far show them; the gap stays at most 2."""
    num_samples = 40 * sum(shares) * scale
    partition = deal_parts(num_samples, len(shares), "random", seed)
    migrations = 0
    for _ in range(400):
        partition = after_step(partition, shares)
        step_gap = max(Fraction(share, size) for share, size in zip(shares, partition.sizes, strict=True))
        assert traversal_gap(partition) <= 2 + step_gap
        migration = plan_migration(partition, 2, seed)
        if migration is not None:
            migrations += 1
            partition = migrate(partition, migration)
            assert list(partition.sizes) == pytest.approx([40 * scale * share for share in shares], abs=1)
    assert migrations <= 1


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 30)), min_size=2, max_size=3), SEEDS)
def test_no_other_sizes_are_nearer_to_the_drawn_counts(parts: list[tuple[int, int]], seed: int) -> None:
    """Brute force over all sizes: no sizes have a smaller largest distance from the proportional ones."""
    owner = np.repeat(np.arange(len(parts)), [size for size, _ in parts]).astype(np.int32)
    drawn = [count for _, count in parts]
    partition = Partition.of(owner, drawn, 0)
    migration = plan_migration(partition, 0.5, seed)
    if migration is None or min(drawn) == 0:
        return
    total = len(owner)
    goal = [Fraction(total * count, sum(drawn)) for count in drawn]
    if min(goal) < 1:
        return  # the minimum of one sample per worker decides, not the draws

    def distance(sizes: list[int]) -> Fraction:
        return max(abs(size - wanted) for size, wanted in zip(sizes, goal, strict=True))

    others = [[first, total - first] for first in range(1, total)]
    if len(parts) == 3:
        others = [[a, b, total - a - b] for a in range(1, total - 1) for b in range(1, total - a)]
    assert distance(list(migrate(partition, migration).sizes)) == min(map(distance, others))


@given(dealt(), st.data())
def test_broken_samples_leave_and_come_back(partition: Partition, data: st.DataObject) -> None:
    num_samples = len(partition.owner)
    broken = np.array(data.draw(st.lists(st.booleans(), min_size=num_samples, max_size=num_samples)))
    left = [np.count_nonzero(~broken[partition.members(part)]) for part in range(partition.num_parts)]
    if min(left) == 0:
        with pytest.raises(PolicyError, match="at least one usable sample"):
            without_samples(partition, broken)
        return
    without = without_samples(partition, broken)
    assert (without.owner[broken] == NO_PART).all()
    assert (without.owner[~broken] == partition.owner[~broken]).all()
    check(with_all_samples(without), num_samples)
