"""The bench of series of unequal length: its configurations, its steps, and how turns are compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.plaid import WAYS, Run, config_of, over
from workloads.series_weights import BATCH_SIZE, SPEEDS, Epochs, weights_of

from hpcbal.config import EnsembleConfig

EPOCHS = Epochs(np.random.default_rng(0).lognormal(5.0, 0.5, 300), np.arange(100, 300), 3)


@pytest.mark.parametrize("name", WAYS)
def test_the_configurations_are_valid(name: str) -> None:
    values = config_of(WAYS[name], 3, seed=1, epochs=9, series=Path("series"), output=Path("out"))
    config = EnsembleConfig.model_validate(values)
    assert (config.data.lookahead, config.balance.samples) == (WAYS[name].lookahead, WAYS[name].samples)
    assert config.dnns[0].stop.max_epochs == 9


@pytest.mark.parametrize("way", ["even", "dealt", *SPEEDS])
def test_each_way_trains_every_sample_once_per_epoch(way: str) -> None:
    steps = list(EPOCHS.steps(way, 1))
    assert [sum(map(len, shares)) for shares in steps[:-1]] == [BATCH_SIZE] * (len(steps) - 1)
    seen = np.concatenate([ids for shares in steps for ids in shares])
    assert sorted(seen.tolist()) == EPOCHS.train.tolist()


def test_the_fast_worker_holds_the_shortest_series_and_as_much_as_it_is_fast() -> None:
    steps = list(EPOCHS.steps("parts", 0))
    parts = [EPOCHS.sizes[np.concatenate([shares[worker] for shares in steps])] for worker in range(3)]
    assert parts[0].max() <= parts[1].min()
    assert parts[1].max() <= parts[2].min()
    assert [part.sum() / EPOCHS.sizes[EPOCHS.train].sum() for part in parts] == pytest.approx(
        [0.5, 0.25, 0.25], abs=0.02
    )


def test_weights_of_uneven_shares() -> None:
    shares, sizes = [np.array([0]), np.array([1, 2, 3])], np.array([6.0, 1.0, 2.0, 3.0])
    assert weights_of(shares, sizes, "samples") == [0.25, 0.75]
    assert weights_of(shares, sizes, "size") == weights_of(shares, sizes, "mean") == [0.5, 0.5]


def test_turns_are_compared_one_by_one() -> None:
    """One turn in which the machine was slow favours no way."""
    runs, others = ([Run(base * slow, 2 * slow, 0.1, 0.5) for slow in (1.0, 3.0, 1.0)] for base in (0.6, 1.0))
    assert over(runs, others) == pytest.approx(0.6)
    assert over(runs, others, "pass_s") == 1.0
