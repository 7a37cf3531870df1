"""Time that the ranks of a trainer group spend waiting for data, computing and summing gradients."""

from __future__ import annotations

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
    """

    wait_s: float = 0.0
    compute_s: float = 0.0
    collective_s: float = 0.0
    samples: int = 0
    worked_s: float = 0.0
    work: float = 0.0

    def by_rank(self, collective: GradientCollective, *, is_sized: bool = False) -> RankFacts:
        """The sums of all ranks; collective over the group.

        Args:
            is_sized: whether samples differ in size, so that their work is a fact of its own.
        """
        rows = np.zeros((collective.size, 6))
        rows[collective.rank] = astuple(self)
        _, summed = collective.sum((), rows.reshape(-1))
        wait_s, compute_s, collective_s, samples, worked_s, work = summed.reshape(rows.shape).T.tolist()
        return RankFacts(
            wait_s=tuple(wait_s),
            compute_s=tuple(compute_s),
            collective_s=tuple(collective_s),
            samples=tuple(round(number) for number in samples),
            worked_s=tuple(worked_s),
            work=tuple(work) if is_sized else None,
        )
