"""Where the ranks of a trainer group spend a pass: waiting for data, computing, summing gradients."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

from hpcbal.telemetry.ledger import RankFacts
from hpcbal.training.collective import GradientCollective


@dataclass
class RankTimes:
    """Sums over the training steps of a pass, of one rank.

    Attributes:
        wait_s: without a batch.
        compute_s: from having the batch until arriving at the collective.
        collective_s: in the collective, most of it waiting for later ranks.
        samples: valid ones that this rank computed on.
        worked_s: what balancing goes by, see `Step.worked_s`: `compute_s`, and what this rank has spent on
            preprocessing besides.
    """

    wait_s: float = 0.0
    compute_s: float = 0.0
    collective_s: float = 0.0
    samples: int = 0
    worked_s: float = 0.0

    def by_rank(self, collective: GradientCollective) -> RankFacts:
        """The same of all ranks; collective over the group."""
        rows = np.zeros((collective.size, 5))
        rows[collective.rank] = astuple(self)
        _, summed = collective.sum((), rows.reshape(-1))
        wait_s, compute_s, collective_s, samples, worked_s = summed.reshape(rows.shape).T.tolist()
        return RankFacts(
            wait_s=tuple(wait_s),
            compute_s=tuple(compute_s),
            collective_s=tuple(collective_s),
            samples=tuple(round(number) for number in samples),
            worked_s=tuple(worked_s),
        )
