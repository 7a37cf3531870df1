"""Time that the ranks of a trainer group spend waiting for data, computing and summing gradients."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

import numpy as np

from hpcbal.telemetry.ledger import RankFacts
from hpcbal.training.collective import GradientCollective


@dataclass
class RankTimes:
    """One rank's sums over the training steps of a pass.

    Attributes:
        wait_s: seconds of waiting for batches.
        compute_s: seconds from having a batch until arriving at the collective.
        collective_s: seconds in the collective, mostly waiting for slower ranks.
        samples: number of valid samples that this rank computed on.
        worked_s: seconds that balancing equalises, see `Step.worked_s`: `compute_s` combined with this rank's
            own preprocessing.
        work: in samples of mean size.
        slowest: work of the slowest rank in each step, see `DealtStep`.
        num_steps: number of training steps.
        least_s: shortest time in the collective of a step; infinite before the first one.
    """

    wait_s: float = 0.0
    compute_s: float = 0.0
    collective_s: float = 0.0
    samples: int = 0
    worked_s: float = 0.0
    work: float = 0.0
    slowest: float = 0.0
    num_steps: int = 0
    least_s: float = math.inf

    def add_meeting(self, seconds: float) -> None:
        """Add the time in the collective of a training step."""
        self.collective_s += seconds
        self.num_steps += 1
        self.least_s = min(self.least_s, seconds)

    def by_rank(self, collective: GradientCollective, *, is_sized: bool = False) -> RankFacts:
        """The sums of all ranks; collective over the group.

        The shortest time of any rank and step in the collective is what an all-reduce takes without waiting,
        because in each step one rank comes last. What a rank spends there beyond that is waiting.

        Args:
            is_sized: whether samples differ in size; their work and the waiting are then facts of their own.
        """
        rows = np.zeros((collective.size, 9))
        rows[collective.rank] = astuple(self)
        _, summed = collective.sum((), rows.reshape(-1))
        columns = summed.reshape(rows.shape).T.tolist()
        wait_s, compute_s, collective_s, samples, worked_s, work, _, num_steps, least_s = columns
        summing_s = min(least_s)
        waited_s = [
            max(0.0, seconds - number * summing_s) if number else 0.0
            for seconds, number in zip(collective_s, num_steps, strict=True)
        ]
        return RankFacts(
            wait_s=tuple(wait_s),
            compute_s=tuple(compute_s),
            collective_s=tuple(collective_s),
            samples=tuple(round(number) for number in samples),
            worked_s=tuple(worked_s),
            work=tuple(work) if is_sized else None,
            waited_s=tuple(waited_s) if is_sized else None,
            slowest_work=self.slowest if is_sized else None,
        )
