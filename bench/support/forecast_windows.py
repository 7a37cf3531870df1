"""The same seconds of a run, measured and simulated.

Workers that share links come into step and out of it by chance, and stay so for a minute or more: two that
fill each other's gaps may train nearly twice as fast as two that transfer at the same time. What a run of
some seconds reaches depends on how its workers started. So it is compared with simulations that start alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hpcbal.forecast.prediction import Job


@dataclass(frozen=True, slots=True)
class Window:
    """What is measured of a run.

    Attributes:
        apart_s: each worker starts so much later than the one before.
        warm_up_s: after the first step of the last worker, left out.
        seconds: each worker begins steps for so long.
    """

    apart_s: float
    warm_up_s: float
    seconds: float

    def steps_per_s(self, ends: Sequence[ArrayLike]) -> float:
        """Of all workers together, from when their steps ended; a step counts in part at both edges.

        Raises:
            ValueError: a worker is done before all have warmed up.
        """
        arrays = [np.asarray(each, np.float64) for each in ends]
        begin = max(each[0] for each in arrays) + self.warm_up_s
        end = min(each[-1] for each in arrays)
        if not begin < end:
            raise ValueError(f"a worker is done {begin - end:.1f} s before all have warmed up")
        done = 0.0
        for each in arrays:
            at_begin, at_end = np.interp([begin, end], each, np.arange(each.size))
            done += at_end - at_begin
        return float(done / (end - begin))

    def simulated(
        self, job: Job, alone_steps_per_s: float, num_repeats: int, seed: int = 0
    ) -> NDArray[np.float64]:
        """What simulations of the run reach, each with steps drawn anew: shape (num_repeats,).

        Args:
            alone_steps_per_s: of one worker without others, at least half of what it reaches for `seconds`.
            seed: of the first repeat; those after it count on.
        """
        num_steps = math.ceil(2 * self.seconds * alone_steps_per_s) + 5
        begins_s = tuple(self.apart_s * worker for worker in range(len(job.cluster.workers)))
        reached = []
        for repeat in range(num_repeats):
            settings = replace(job.settings, num_steps=num_steps, seed=seed + repeat, begins_s=begins_s)
            ends = [
                each[: np.searchsorted(each, self.apart_s * worker + self.seconds) + 1]
                for worker, each in enumerate(replace(job, settings=settings).run().ends_s)
            ]
            reached.append(self.steps_per_s(ends))
        return np.array(reached)
