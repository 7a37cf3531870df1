"""Steps whose samples are dealt by size equal those of one process, under both ways to weigh gradients."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from loopback import Meeting
from loopback_groups import LoopbackCollective

from hpcbal.config import DnnConfig
from hpcbal.config.schema.ensemble import BalanceConfig
from hpcbal.data.spec import SampleSpec
from hpcbal.dataplane.reader import Batch
from hpcbal.policies.batching import split_evenly
from hpcbal.policies.selection import StepShares
from hpcbal.runtime.balance.dealing import Dealer, DealtStep
from hpcbal.training.keras.tensorflow_backend import TensorFlowBackend
from hpcbal.training.step import train_step

NUM_RANKS, NUM_STEPS, CLASSES, SHAPE = 3, 4, 5, (None, 2)
SGD = {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9}


@pytest.fixture(scope="module")
def replicas() -> list[Any]:
    """One for each rank, and one for the process that trains alone; all equal."""
    dnn = {"name": "dnn", "model": "hpcbal.models:temporal_cnn", "batch_size": 16, "stop": {"max_epochs": 1}}
    args = {"filters": 4, "kernel_size": 3, "blocks": 2}
    settings = DnnConfig.model_validate({**dnn, "args": args, "optimizer": SGD})
    backend, sample = TensorFlowBackend(precision="float64"), SampleSpec.of(SHAPE, "float64")
    return [backend.build(settings, sample, CLASSES, 0) for _ in range(NUM_RANKS + 1)]


def global_batches() -> list[Batch]:
    """Batches of 11, 12, ... series, a few of them much longer than the others."""
    random = np.random.default_rng(5)
    batches = []
    for n in range(11, 11 + NUM_STEPS):
        lengths = np.maximum(2, random.lognormal(2.0, 0.9, n)).astype(int)
        series = [random.normal(size=(length, 2)) for length in lengths]
        batches.append(Batch(np.arange(n), series, random.integers(0, CLASSES, n)))
    return batches


def part(batch: Batch, positions: np.ndarray) -> Batch:
    return Batch(batch.ids[positions], [batch.x[i] for i in positions], batch.y[positions])


def train_group(replicas: Sequence[Any], steps: Sequence[tuple[Batch, DealtStep]]) -> None:
    meeting = Meeting(NUM_RANKS, 60.0)

    def play(rank: int) -> None:
        collective = LoopbackCollective(rank, meeting)
        for batch, step in steps:
            mine = part(batch, step.shares.of_rank(rank).positions)
            weight = None if step.weights is None else step.weights[rank]
            train_step(replicas[rank], mine, len(batch.ids), collective, weight=weight)

    with ThreadPoolExecutor(NUM_RANKS) as threads:
        list(threads.map(play, range(NUM_RANKS)))


def counts_of(step: DealtStep, sizes: np.ndarray, weighs_by_size: bool) -> np.ndarray:
    """Return the weight of each sample, by position.

    By size: a sample has its share's size over that of the step, divided among all samples of the share
    ([CHRONICA] Eq. 7). Otherwise each sample has the same weight.
    """
    counts = np.full(len(sizes), 1 / len(sizes))
    if weighs_by_size:
        for rank in range(NUM_RANKS):
            positions = step.shares.of_rank(rank).positions
            counts[positions] = sizes[positions].sum() / sizes.sum() / len(positions)
    return counts


@pytest.mark.parametrize("weights", ["samples", "size"])
@pytest.mark.parametrize("samples", ["within-batch", "in-order"])
def test_a_group_ends_with_the_weights_of_one_process(
    replicas: list[Any], samples: str, weights: str
) -> None:
    """The oracle computes each sample by itself, unpadded, and adds what it counts."""
    dealer = Dealer(BalanceConfig(samples=samples, gradient_weights=weights))
    *group, alone = replicas
    start = alone.state()
    steps = []
    for batch in global_batches():
        sizes = np.array([len(series) for series in batch.x], np.float64)
        even = StepShares.neighbours(0, split_evenly(len(sizes), NUM_RANKS))
        step = dealer.deal(even, batch.ids, sizes, (1.0,) * NUM_RANKS)
        steps.append((batch, step))
        counts = counts_of(step, sizes, weights == "size")
        assert counts.sum() == pytest.approx(1.0)
        own = [alone.compute(part(batch, np.array([i])), 1).tensors for i in range(len(sizes))]
        alone.apply([np.einsum("i,i...->...", counts, np.stack(of)) for of in zip(*own, strict=True)])
    train_group(group, steps)
    wanted = alone.state()
    for replica in group:
        for name, array in wanted.items():
            np.testing.assert_allclose(replica.state()[name], array, atol=1e-10, err_msg=name)
    assert any(np.abs(array - start[name]).max() > 1e-2 for name, array in wanted.items())
    for replica in replicas:
        replica.load_state(start)
