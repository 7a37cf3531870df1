"""Where the ranks of a trainer group spend a pass: waiting for data, computing, summing gradients."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

from hpcbal.training.collective import GradientCollective


@dataclass
class RankTimes:
    """Sums over the training steps of a pass, of one rank.

    Attributes:
        wait_s: without a batch.
        compute_s: from having the batch until arriving at the collective.
        collective_s: in the collective, most of it waiting for later ranks.
        samples: valid ones that this rank computed on.
        worked_s: what balancing goes by, see `Feeder.worked_s`: `compute_s`, and what this rank has spent on
            preprocessing besides.
    """

    wait_s: float = 0.0
    compute_s: float = 0.0
    collective_s: float = 0.0
    samples: int = 0
    worked_s: float = 0.0

    def by_rank(self, collective: GradientCollective) -> dict[str, list[float]]:
        """The same of all ranks: of each quantity one number per rank; collective over the group."""
        rows = np.zeros((collective.size, 5))
        rows[collective.rank] = astuple(self)
        _, summed = collective.sum((), rows.reshape(-1))
        wait_s, compute_s, collective_s, samples, worked_s = summed.reshape(rows.shape).T.tolist()
        return {
            "wait_s": wait_s,
            "compute_s": compute_s,
            "collective_s": collective_s,
            "samples": [round(number) for number in samples],
            "worked_s": worked_s,
        }
