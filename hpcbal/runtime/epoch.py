"""One pass of the shared stream through one trainer group: training steps, then validation."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np

from hpcbal.control.messages import Position
from hpcbal.runtime.feeding import Feeder, Step
from hpcbal.training.backend import Replica, Sums
from hpcbal.training.collective import GradientCollective
from hpcbal.training.step import evaluate_step, train_step

SUMS_NAME = "epoch/sums"  # array of a checkpoint inside a pass: the sums behind the metrics so far


@dataclass
class EpochSums:
    """The sums behind an epoch's metrics, over all ranks of the group."""

    train: Sums = field(default_factory=lambda: Sums(0.0, 0.0, 0))
    validation: Sums = field(default_factory=lambda: Sums(0.0, 0.0, 0))

    def metrics(self) -> dict[str, float]:
        """Means over samples; NaN where there was no valid sample."""
        return {
            "loss": _mean(self.train.loss, self.train.count),
            "accuracy": _mean(self.train.correct, self.train.count),
            "val_loss": _mean(self.validation.loss, self.validation.count),
            "val_accuracy": _mean(self.validation.correct, self.validation.count),
        }

    def to_array(self) -> np.ndarray:
        """float64 of shape (6,), for a checkpoint."""
        parts = [(s.loss, s.correct, float(s.count)) for s in (self.train, self.validation)]
        return np.array(parts, dtype=np.float64).reshape(6)

    @classmethod
    def from_array(cls, array: np.ndarray) -> EpochSums:
        values = [float(value) for value in array]
        return cls(Sums(values[0], values[1], int(values[2])), Sums(values[3], values[4], int(values[5])))


def _mean(total: float, count: int) -> float:
    return total / count if count else float("nan")


@dataclass(frozen=True, slots=True)
class PassResult:
    """Where a pass ended, at its end or where the group was suspended; `wait_s` was spent without a batch."""

    position: Position
    complete: bool
    seconds: float
    wait_s: float
    num_steps: int


class PassRunner:
    """Runs passes of one group on this rank.

    All ranks of the group make the same steps: sizes follow from the configuration alone, and orders to stop
    ride in the all-reduce of a step, so that no rank is alone in a collective.

    Args:
        suspended: whether this rank has been told to stop at the next step.
        between_steps: called once per step, for messages and heartbeats.
    """

    def __init__(
        self,
        feeder: Feeder,
        num_positions: int,
        replica: Replica,
        collective: GradientCollective,
        suspended: Callable[[], bool],
        between_steps: Callable[[], None],
    ) -> None:
        self._feeder = feeder
        self._num_positions = num_positions
        self._replica = replica
        self._collective = collective
        self._suspended = suspended
        self._between_steps = between_steps

    def run(self, start: Position, sums: EpochSums) -> PassResult:
        """Train and validate from `start` to the end of its pass, adding to `sums`.

        Raises:
            GroupFailed: on all ranks of the group, when any of them failed.
        """
        began, waited = time.monotonic(), self._feeder.wait_s
        offset, num_steps = start.offset, 0
        with closing(self._feeder.steps(start.pass_index, start.offset)) as steps:
            for step in steps:
                self._between_steps()
                stop = self._perform(step, sums)
                offset, num_steps = step.end, num_steps + 1
                if stop:
                    break
        return PassResult(
            Position(start.pass_index, offset),
            complete=offset >= self._num_positions,
            seconds=time.monotonic() - began,
            wait_s=self._feeder.wait_s - waited,
            num_steps=num_steps,
        )

    def _perform(self, step: Step, sums: EpochSums) -> bool:
        """Train or validate; returns whether the group stops after this step."""
        if step.num_samples_total == 0:  # all samples broken, and all ranks know it: no weight moves
            return False
        if step.training:
            outcome = train_step(
                self._replica, step.batch, step.num_samples_total, self._collective, self._suspended()
            )
            sums.train = sums.train + outcome.sums
        else:
            outcome = evaluate_step(self._replica, step.batch, self._collective, self._suspended())
            sums.validation = sums.validation + outcome.sums
        return outcome.suspend
