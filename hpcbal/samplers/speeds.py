"""Learn the speeds of the ranks from the seconds that each needs for its own part of a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from hpcbal.errors import SamplerError
from hpcbal.policies.batching import BATCHING, BatchTask, Observation, WorkerLimits
from hpcbal.samplers.checks import number
from hpcbal.samplers.shares import FloatArray, Share

WARM_UP_STEPS = 1
"""First steps of a process that are not counted: memory is allocated in them, and kernels are chosen."""


_LEAST_WEIGHT = 1e-6
"""Of the largest weight: with 0 a rank would be left without a sample."""


class Ranks(Protocol):
    """How a few numbers travel between the ranks; every rank must call the same methods in the same order."""

    def gather(self, row: Sequence[float]) -> list[list[float]]:
        """Return the rows of all ranks, by rank; all are of the same length."""

    def tell(self, row: Sequence[float]) -> list[float]:
        """Return the row of rank 0, on all ranks."""


class MeasuredSpeeds:
    """The weights of the ranks, by a policy of `hpcbal.policies.batching`.

    Rank 0 decides for all: the same numbers may give different decisions on different processors, because
    their libraries round differently.

    Args:
        policy: name of the policy; one of those that decide.
        batch_size: samples of a full step.
        weights: of the ranks until the first decision, shape (num_replicas,).
        max_samples: most samples of a rank; None: no limit.

    Attributes:
        weights: the part of the work that each rank should get; only proportions count.

    Raises: SamplerError: there is no such policy.
    """

    def __init__(self, policy: str, batch_size: int, weights: FloatArray, max_samples: int | None) -> None:
        names = sorted(name for name, known in BATCHING.items() if known.decides)
        if policy not in names:
            raise SamplerError(f"policy: got {policy!r}, allowed: {', '.join(names)}")
        self._policy = BATCHING[policy]
        limits = WorkerLimits(1, max_samples)
        self._state: Any = self._policy.start(BatchTask.uniform(batch_size, len(weights), limits))
        self.weights = weights
        self._num_seen = 0
        self._clear()

    def add(self, share: Share, seconds: float) -> None:
        """Count a step of this rank.

        Args:
            seconds: that its own samples took, without waiting for other ranks; finite and > 0.

        Raises: SamplerError: the seconds are out of range.
        """
        if not 0 < number(seconds) < math.inf:
            raise SamplerError(f"seconds of a step: got {seconds!r}, allowed: a finite number above 0")
        self._num_seen += 1
        if self._num_seen > WARM_UP_STEPS:
            self._sums += (1.0, share.num_samples, share.cost, float(seconds))

    def exchange(self, ranks: Ranks, is_first: bool) -> None:
        """Let rank 0 decide from the steps of all ranks since the last exchange; collective.

        Without a step of some rank the weights stay as they are.

        Args:
            is_first: whether this is rank 0.
        """
        rows = np.array(ranks.gather(self._sums.tolist()))
        self._clear()
        if not (rows[:, 0] > 0).all():
            return
        weights = self.weights
        if is_first:
            means = rows / rows[:, :1]
            seen = [Observation(round(n), seconds, work=work) for _, n, work, seconds in means.tolist()]
            self._state = self._policy.decide(self._state, seen).state
            weights = np.array(self._state.weights, np.float64)
            weights = np.maximum(weights, _LEAST_WEIGHT * float(weights.max()))
        self.weights = np.array(ranks.tell(weights.tolist()))

    def _clear(self) -> None:
        """Sums since the last exchange: steps, samples, work, seconds."""
        self._sums = np.zeros(4)
