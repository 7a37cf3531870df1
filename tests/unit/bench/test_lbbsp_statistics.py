"""Each way that is compared sees every sample once in an epoch, in the decided shares."""

from __future__ import annotations

import numpy as np
import pytest
from bench_lbbsp_statistics import (
    BATCH_SIZE,
    Outcome,
    Samples,
    balanced_shares,
    epochs_to,
    figures,
    mixed_epoch,
    parts_by_class,
    parts_epoch,
)


@pytest.fixture
def samples() -> Samples:
    ids = np.arange(1000)
    return Samples(np.zeros((1000, 1), np.float32), ids % 10, ids[200:], ids[:200])


def test_mixed_steps_hold_every_sample_once_in_the_decided_shares(samples: Samples) -> None:
    shares = balanced_shares(7, seed=0)
    steps = list(mixed_epoch(samples, 0, 0, shares))
    assert sorted(np.concatenate([ids for step in steps for ids in step])) == samples.train.tolist()
    assert [tuple(map(len, step)) for step in steps[:6]] == shares[:6]
    assert shares[0] == (32, 32, 32, 32) != shares[1]
    other = list(mixed_epoch(samples, 0, 0, shares[:1] * 7))
    for one, two in zip(steps, other, strict=True):  # the same samples in the same steps, whatever the split
        np.testing.assert_array_equal(np.concatenate(one), np.concatenate(two))


def test_parts_hold_every_sample_once_and_different_classes(samples: Samples) -> None:
    parts = parts_by_class(samples, (80, 24, 16, 8))
    assert [len(part) for part in parts] == [500, 150, 100, 50]
    assert set(samples.y[parts[0]]).isdisjoint(samples.y[parts[2]])
    steps = list(parts_epoch(parts, 0, 0))
    assert sorted(np.concatenate([ids for step in steps for ids in step])) == samples.train.tolist()
    assert max(sum(map(len, step)) for step in steps) <= BATCH_SIZE


def test_a_run_that_never_reaches_the_target_counts_with_all_its_epochs() -> None:
    curve = [(0.5, 0.2), (1.0, 0.9), (1.5, 0.8)]
    assert (epochs_to(0.85, curve), epochs_to(0.95, curve)) == (1.0, None)
    reached, never = Outcome((2.0, 4.0), (0.9, 0.9), 8), Outcome((8.0, None), (0.8, 0.7), 8)
    found = figures(
        {"even": reached, "weighted": reached, "unweighted": never},
        {"weighted": reached, "unweighted": never},
    )
    assert (found["epochs_balanced_over_even"], found["epochs_noise"]) == (1.0, 0.0)
    assert found["unweighted_over_weighted"] == pytest.approx(16 / 6, abs=1e-4)
    assert (found["unweighted_reached"], found["unweighted_accuracy_lost"]) == (1.0, 0.15)
