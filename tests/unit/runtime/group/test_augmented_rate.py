"""A pass of a DNN that augments reports the time of that, and no rate that `augment` does not allow."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from hpcbal.dataplane.reader import Batch
from hpcbal.events.history import Position
from hpcbal.policies.selection import StepShares
from hpcbal.runtime.balance.balancer import EvenSplit
from hpcbal.runtime.balance.step import Step
from hpcbal.runtime.group.epoch import EpochSums, PassResult, PassRunner
from hpcbal.training.backend import LocalCollective, Sums


def run_pass(augment_s: float) -> PassResult:
    """Train on two steps of four samples each."""

    def steps(pass_index: int, offset: int) -> Iterator[Step]:
        for start in (0, 4):
            batch = Batch(np.arange(start, start + 4), np.zeros((4, 2)), np.zeros(4, np.int64))
            shares = StepShares.neighbours(start, [4])
            yield Step(start, start + 4, True, 4, shares, batch, augment_s, augment_s=augment_s)

    replica = SimpleNamespace(
        broken=None, num_states=0, exchange=None, train_alone=lambda batch: Sums(0.0, len(batch.ids))
    )
    return PassRunner(
        cast("Any", SimpleNamespace(wait_s=0.0, steps=steps)),
        cast("Any", SimpleNamespace(balancer=EvenSplit(1), step_performed=lambda: None)),
        8,
        0.0,
        cast("Any", replica),
        LocalCollective(),
        suspended=lambda: False,
        between_steps=lambda position: None,
        trace=lambda index: cast("Any", SimpleNamespace(step=lambda *times: None, end=lambda: None)),
    ).run(Position(0), EpochSums())


@pytest.mark.parametrize("augment_s", [1e6, 0.0])
def test_the_rate_is_at_most_that_of_augment(augment_s: float) -> None:
    result = run_pass(augment_s)
    assert result.complete
    assert result.augment_s == 2 * augment_s
    assert result.samples_per_s is not None
    assert (result.samples_per_s == pytest.approx(8 / 2e6)) == (augment_s > 0)
    assert result.facts(None, {}).augment_s == (2 * augment_s or None)
