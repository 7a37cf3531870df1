"""Steps of emulated workers on samples of unequal size, in virtual time, under each way of dealing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from support.prophet import Prophet

from hpcbal.policies.batching import BatchTask, split_evenly
from hpcbal.policies.batching.min_max import level_work, split_min_max
from hpcbal.policies.batching.time_curves import FloatArray, IntArray, TimeCurves
from hpcbal.policies.folds import sample_order
from hpcbal.policies.samples.chronica import EpochQueues, shuffle
from hpcbal.policies.samples.task import StepCost, imbalance
from hpcbal.policies.samples.within_batch import deal_by_weight, order_in_windows

GROUPED_BATCHES = 50
"""Batches that `grouped` sorts together, as data loaders for texts do."""


@dataclass(frozen=True)
class Workers:
    """Emulated workers: a step with work x takes worker j launch_s + slope_s[j] * x, times noise."""

    slope_s: FloatArray
    launch_s: float
    noise: float

    @classmethod
    def of(
        cls, speeds: list[float], mean_size: float, launch_s: float = 0.05, noise: float = 0.02
    ) -> Workers:
        """A worker of speed 1 takes 1 s for a sample of mean size."""
        return cls(1.0 / (mean_size * np.array(speeds)), launch_s, noise)

    @property
    def num_workers(self) -> int:
        return len(self.slope_s)

    def seconds(self, work: FloatArray, random: np.random.Generator) -> FloatArray:
        clean = np.where(work > 0, self.launch_s + self.slope_s * work, 0.0)
        return clean * np.maximum(random.normal(1.0, self.noise, len(work)), 0.5)


@dataclass
class Pass:
    """The times of one pass over the data.

    Attributes:
        seconds: sum of the steps, each as long as its slowest worker.
        spread: DIF of the shares' work, mean of the steps ([CHRONICA] Fig. 7).
        missed: error of the predicted time of a step, as a share of it, mean of the steps (Fig. 9).
    """

    seconds: float = 0.0
    spread: float = 0.0
    missed: float = 0.0
    num_steps: int = 0


@dataclass
class Trial:
    """One cluster, one data set and one way of dealing, from pass to pass."""

    method: str
    sizes: FloatArray
    workers: Workers
    samples_per_worker: int
    seed: int = 0
    prophet: Prophet = field(init=False)
    owner: IntArray = field(init=False)
    random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        count = self.workers.num_workers
        self.prophet = Prophet.of(count)
        self.owner = sample_order(len(self.sizes), self.seed, 0) % count
        self.random = np.random.default_rng([self.seed, count])

    @property
    def batch_size(self) -> int:
        return self.samples_per_worker * self.workers.num_workers

    def run_pass(self, number: int) -> Pass:
        """Simulate one pass; the workers' times are measured and learnt from step to step."""
        done = Pass()
        for shares in METHODS[self.method](self, number):
            work = np.array([self.sizes[own].sum() for own in shares])
            seconds = self.workers.seconds(work, self.random)
            used = work > 0
            predicted = float(np.where(used, self.prophet.curves.seconds(work), 0.0).max())
            done.seconds += float(seconds.max())
            done.spread += imbalance(work)
            done.missed += abs(predicted / float(seconds.max()) - 1.0)
            done.num_steps += 1
            self.prophet = self.prophet.after(work, seconds)
        done.spread /= done.num_steps
        done.missed /= done.num_steps
        if self.method == "chronica":
            self.owner = shuffle(self.sizes, self.owner, self.prophet.indicators, done.num_steps)
        return done

    def _batches(self, number: int, num_batches: int = 1) -> Iterator[IntArray]:
        order = sample_order(len(self.sizes), self.seed, number)
        if num_batches > 1:
            order = order[
                order_in_windows(self.sizes[order], self.batch_size, num_batches, self.seed, number)
            ]
        for start in range(0, len(order), self.batch_size):
            yield order[start : start + self.batch_size]

    def _of_counts(self) -> TimeCurves:
        """The learned curves of the workers, in seconds for a number of samples of mean size."""
        known = self.prophet.curves
        return TimeCurves(known.floor_s, known.launch_s, known.slope_s * float(self.sizes.mean()))

    def _in_runs(self, batch: IntArray, counts: tuple[int, ...]) -> list[IntArray]:
        return np.split(batch, np.cumsum(counts)[:-1])

    def evenly(self, number: int, num_batches: int = 1) -> Iterator[list[IntArray]]:
        """Equal counts, whatever the sizes."""
        for batch in self._batches(number, num_batches):
            yield self._in_runs(batch, split_evenly(len(batch), self.workers.num_workers))

    def by_count(self, number: int) -> Iterator[list[IntArray]]:
        """The best counts for what is learnt of the workers, as BOA or `fitted`; samples count as equal."""
        for batch in self._batches(number):
            task = BatchTask.uniform(len(batch), self.workers.num_workers)
            yield self._in_runs(batch, split_min_max(self._of_counts(), task))

    def within_batch(self, number: int, num_batches: int = 1) -> Iterator[list[IntArray]]:
        """Sizes and speeds as in a run, in the batches of the random order or of a lookahead."""
        for batch in self._batches(number, num_batches):
            weights = level_work(self._of_counts(), BatchTask.uniform(len(batch), self.workers.num_workers))
            rank_of = deal_by_weight(self.sizes[batch], weights, StepCost.SUM)
            yield [batch[rank_of == rank] for rank in range(self.workers.num_workers)]

    def chronica(self, number: int) -> Iterator[list[IntArray]]:
        """The paper's scheduler on the workers' parts."""
        queues = EpochQueues(self.sizes, self.owner, self.workers.num_workers, [self.seed, number])
        while queues.num_left:
            yield queues.draw(self.prophet.indicators, self.batch_size)


METHODS: dict[str, Callable[[Trial, int], Iterator[list[IntArray]]]] = {
    "random": Trial.evenly,
    "grouped": lambda trial, number: trial.evenly(number, GROUPED_BATCHES),
    "boa": Trial.by_count,
    "chronica": Trial.chronica,
    "within-batch": Trial.within_batch,
    "lookahead-2": lambda trial, number: trial.within_batch(number, 2),
    "lookahead-4": lambda trial, number: trial.within_batch(number, 4),
}
"""How the samples of a step come to the workers."""


def lower_bound_s(sizes: FloatArray, workers: Workers, batch_size: int) -> float:
    """Seconds of a pass whose steps were all split without a remainder, without noise."""
    curves = TimeCurves(
        np.zeros(workers.num_workers), np.full(workers.num_workers, workers.launch_s), workers.slope_s
    )
    steps = math.ceil(len(sizes) / batch_size)
    return steps * workers.launch_s + float(sizes.sum() / (1.0 / curves.slope_s).sum())
