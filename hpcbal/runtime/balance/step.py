"""One step of a pass, as one rank of a trainer group sees it."""

from __future__ import annotations

from dataclasses import dataclass

from hpcbal.dataplane.batch import Batch
from hpcbal.values.selection import StepShares


@dataclass(frozen=True, slots=True)
class Step:
    """What this rank works on.

    Attributes:
        start, end: the whole step covers positions start..end-1.
        training: True for a training step, False for a validation step.
        num_samples_total: number of valid samples in the whole step.
        shares: each rank's share.
        batch: this rank's share; its memory is used again when the step has ended.
        preprocessing_s: seconds that this rank spent on making its batch; 0 if preprocessors make it.
        is_overlapped: whether a rank makes its next batch while it computes on this one.
        planned: number of samples of each rank by which the step was split, if samples differ in size; the
            shares then hold other numbers, with as much work. None: those of the shares.
        slowest: work of the slowest rank, see `DealtStep`; 0 if samples do not differ in size.
        weight: what this rank's mean gradient counts in the step, 0..1; None: its share of the samples.
    """

    start: int
    end: int
    training: bool
    num_samples_total: int
    shares: StepShares
    batch: Batch
    preprocessing_s: float = 0.0
    is_overlapped: bool = False
    planned: tuple[int, ...] | None = None
    slowest: float = 0.0
    weight: float | None = None

    @property
    def work(self) -> float:
        """The work of this rank's batch, as a policy counts it: in samples of mean size."""
        return self.batch.work

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of samples of each rank, as a policy decided it."""
        return self.shares.counts if self.planned is None else self.planned

    def worked_s(self, compute_s: float) -> float:
        """Seconds that a share of this size keeps the rank busy per step; balancing equalises them.

        If the rank makes its next batch while it computes, the longer of the two counts; otherwise their sum.

        Args:
            compute_s: seconds of computing on the step, without waiting for others.
        """
        if self.is_overlapped:
            return max(self.preprocessing_s, compute_s)
        return self.preprocessing_s + compute_s
