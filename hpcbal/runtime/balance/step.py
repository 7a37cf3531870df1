"""One step of a pass, as one rank of a trainer group sees it."""

from __future__ import annotations

from dataclasses import dataclass

from hpcbal.dataplane.batch import Batch
from hpcbal.values.selection import StepShares


@dataclass(frozen=True, slots=True)
class Step:
    """What this rank works on.

    Attributes:
        start, end: positions of the whole step.
        training: whether it trains or validates.
        num_samples_total: valid samples of the whole step.
        shares: what each rank takes.
        batch: this rank's share; its memory is used again two steps later.
        preprocessing_s: seconds that this rank has spent on making its batch; 0 where preprocessors make it.
        is_overlapped: whether a rank makes its next batch while it computes on this one.
    """

    start: int
    end: int
    training: bool
    num_samples_total: int
    shares: StepShares
    batch: Batch
    preprocessing_s: float = 0.0
    is_overlapped: bool = False

    @property
    def work(self) -> float:
        """What this rank's batch counts for a policy: as much as it has samples."""
        return float(len(self.batch.ids))

    def worked_s(self, compute_s: float) -> float:
        """Seconds that a share like this one keeps the rank busy in every step; what is balanced.

        A rank that makes its next batch while it computes is as fast as the longer of the two allows;
        otherwise it does one after the other.

        Args:
            compute_s: what it has computed on the step, without waiting for others.
        """
        if self.is_overlapped:
            return max(self.preprocessing_s, compute_s)
        return self.preprocessing_s + compute_s
