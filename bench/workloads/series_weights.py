"""What gradient weights do to learning where shares differ in size: a replay on PLAID.

One process plays three workers, one after the other, so no clock has any influence. All ways have the same
first weights and see each sample once per epoch.

- even: the batches of a random order, cut into equal numbers.
- dealt: the same batches, dealt so that equal workers finish together; long series in small shares.
- drawn: equal workers draw from random parts of the data ([CHRONICA] Alg. 2).
- parts: unlike workers draw from parts by size. The first one is twice as fast as the others and holds the
  shortest series; the last one holds the longest.

Weights of the workers' mean gradients:

- samples: their numbers of samples, so that every sample counts once. It is the default.
- size: the sums of their sizes ([CHRONICA] Eq. 7).
- mean: all the same, as plain data parallelism does ([CHRONICA] Eq. 3, which Fig. 2 is about).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcbal.config import DnnConfig
from hpcbal.config.schema.ensemble import BalanceConfig
from hpcbal.data.datasets.ts_series import TsSeries
from hpcbal.dataplane.reader import Batch
from hpcbal.policies.batching import split_evenly
from hpcbal.policies.orders import sample_order
from hpcbal.policies.samples import EpochQueues, Indicators
from hpcbal.runtime.balance.dealing import Dealer
from hpcbal.values.selection import StepShares

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Shares = list[IntArray]
"""The samples of each worker in a step."""

SPEEDS = {"drawn": np.array([1.0, 1.0, 1.0]), "parts": np.array([1.0, 0.5, 0.5])}
"""Of workers that draw from parts."""
NUM_WORKERS = 3
BATCH_SIZE = 24
LAST_EPOCHS = 3
EVALUATION_SAMPLES = 64
NETWORK = {
    "name": "temporal-cnn",
    "model": "hpcbal.models:temporal_cnn",
    "args": {"filters": 16, "kernel_size": 9, "blocks": 4},
    "batch_size": BATCH_SIZE,
    "optimizer": {"name": "adam", "learning_rate": 0.005},
    "stop": {"max_epochs": 1},
}
COMPARED = (
    ("even", "samples"),
    ("even", "size"),
    ("dealt", "size"),
    ("dealt", "mean"),
    ("drawn", "samples"),
    ("drawn", "size"),
    ("parts", "samples"),
    ("parts", "size"),
    ("parts", "mean"),
)
"""Without `even` with `mean` and `dealt` with `samples`, which are the same as `even` with `samples`."""


@dataclass(frozen=True)
class Learnt:
    """Test accuracy of one way.

    Attributes:
        whole: mean over all epochs: the higher, the sooner it was reached.
        last: mean over the last epochs.
    """

    whole: float
    last: float


@dataclass(frozen=True)
class Epochs:
    """The steps of each way.

    Attributes:
        sizes: of all samples.
        train: ids of the training samples.
        seed: of the random orders.
    """

    sizes: FloatArray
    train: IntArray
    seed: int

    def steps(self, way: str, epoch: int) -> Iterator[Shares]:
        """The steps of an epoch; each training sample is in one of them."""
        if way in SPEEDS:
            yield from self._from_parts(way, epoch)
            return
        dealer = Dealer(BalanceConfig(samples="in-order" if way == "even" else "within-batch"))
        order = self.train[sample_order(len(self.train), self.seed, epoch)]
        for start in range(0, len(order), BATCH_SIZE):
            ids = order[start : start + BATCH_SIZE]
            even = StepShares.neighbours(0, split_evenly(len(ids), NUM_WORKERS))
            shares = dealer.deal(even, ids, self.sizes[ids], (1.0,) * NUM_WORKERS).shares
            yield [ids[shares.of_rank(rank).positions] for rank in range(NUM_WORKERS)]

    def _from_parts(self, way: str, epoch: int) -> Iterator[Shares]:
        """Every worker draws its part empty, as large as its speed."""
        sizes, speeds = self.sizes[self.train], SPEEDS[way]
        order = np.argsort(sizes, kind="stable") if way == "parts" else sample_order(len(sizes), self.seed, 0)
        begun = np.cumsum(sizes[order]) - sizes[order]
        owner = np.empty(len(sizes), np.int64)
        limits = np.cumsum(speeds)[:-1] / speeds.sum() * sizes.sum()
        owner[order] = np.searchsorted(limits, begun, side="right")
        queues = EpochQueues(sizes, owner, NUM_WORKERS, [self.seed, epoch])
        indicators = Indicators(1.0 / speeds, np.zeros(NUM_WORKERS))
        while queues.num_left:
            yield [self.train[places] for places in queues.draw(indicators, BATCH_SIZE)]


class Replay:
    """One network, reset to the same first weights for each way."""

    def __init__(self, source: TsSeries, seed: int) -> None:
        from hpcbal.training.tensorflow_backend import TensorFlowBackend
        from hpcbal.training.tensorflow_setup import setup_tensorflow

        setup_tensorflow(0, 1)
        read = [source.read(sample) for sample in range(len(source))]
        self._series = [series for series, _ in read]
        self._labels = np.array([label for _, label in read], np.int64)
        self._test = np.array(source.validation_ids, np.int64)
        self._sizes = np.array([len(series) for series in self._series], np.float64)
        self._epochs = Epochs(self._sizes, np.setdiff1d(np.arange(len(read)), self._test), seed)
        dnn = DnnConfig.model_validate(NETWORK)
        self._replica = TensorFlowBackend().build(dnn, source.sample_spec, source.num_classes, seed)
        self._start = self._replica.state()

    def run(self, way: str, weights: str, epochs: int) -> Learnt:
        """Train from the first weights."""
        self._replica.load_state(self._start)
        accuracy = []
        for epoch in range(epochs):
            for shares in self._epochs.steps(way, epoch):
                self._step(shares, weights)
            accuracy.append(self._accuracy())
        return Learnt(statistics.mean(accuracy), statistics.mean(accuracy[-LAST_EPOCHS:]))

    def _step(self, shares: Shares, weights: str) -> None:
        shares = [ids for ids in shares if len(ids)]
        parts = [
            self._replica.compute(self._batch(ids), 1, weight).tensors
            for ids, weight in zip(shares, weights_of(shares, self._sizes, weights), strict=True)
        ]
        self._replica.apply([sum(tensors) for tensors in zip(*parts, strict=True)])

    def _accuracy(self) -> float:
        by_size = self._test[np.argsort(self._sizes[self._test], kind="stable")]
        batches = np.array_split(by_size, -(-len(by_size) // EVALUATION_SAMPLES))
        correct = sum(float(self._replica.evaluate(self._batch(ids)).states[0]) for ids in batches)
        return float(correct / len(by_size))

    def _batch(self, ids: IntArray) -> Batch:
        return Batch(ids, [self._series[i] for i in ids], self._labels[ids])


def weights_of(shares: Shares, sizes: FloatArray, weights: str) -> list[float]:
    """What each worker's mean gradient counts in a step; no share is empty."""
    counts = [float(len(ids)) for ids in shares]
    sums = [float(sizes[ids].sum()) for ids in shares]
    counted = {"samples": counts, "size": sums, "mean": [1.0] * len(shares)}[weights]
    return [each / sum(counted) for each in counted]


def compare(source: TsSeries, seeds: Sequence[int], epochs: int) -> dict[str, float]:
    """Print a table; returns test accuracies, means over the seeds."""
    print(
        f"\nPLAID, gradient weights, {epochs} epochs, {len(seeds)} seeds: test accuracy, mean of all epochs"
    )
    print("and of the last ones; what the first is above that of the first row, mean and spread of seeds")
    replays = [Replay(source, seed) for seed in seeds]
    found: dict[str, Any] = {}
    for way, weights in COMPARED:
        found[f"{way}_{weights}"] = [replay.run(way, weights, epochs) for replay in replays]
        base, own = found["even_samples"], found[f"{way}_{weights}"]
        more = [mine.whole - other.whole for mine, other in zip(own, base, strict=True)]
        spread = statistics.stdev(more) if len(more) > 1 else 0.0
        print(
            f"{way:>8} {weights:<8}{statistics.mean(run.whole for run in own):>7.3f}"
            f"{statistics.mean(run.last for run in own):>7.3f}{statistics.mean(more):>+8.3f} +- {spread:.3f}",
            flush=True,
        )
    figures = {}
    for name, own in found.items():
        figures[f"weights_{name}_accuracy"] = statistics.mean(run.last for run in own)
        figures[f"weights_{name}_mean_accuracy"] = statistics.mean(run.whole for run in own)
    return figures
