"""The learning rate of each step, as a function of the step and of the epochs before it.

Nothing else decides it. So a checkpoint needs no state of a schedule, and a run that resumes, on any number
of slots, goes on with the rate of an undisturbed one.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Decay = Literal["constant", "step", "exponential", "cosine", "plateau", "own"]


@dataclass(frozen=True, slots=True)
class RateSchedule:
    """How a learning rate changes. Times are in epochs; an epoch may be a part of one.

    Attributes:
        peak: learning rate after the warm-up, before any decay, > 0.
        decay: `own`: what the function given to `rate_of_step` returns.
        warmup: the rate grows linearly to `peak` over this time, >= 0. The first step has a rate above 0.
        at: for step: multiply by `factor` at each of these times, ascending.
        factor: for step, exponential and plateau, 0 < factor < 1.
        every: for exponential: multiply by `factor` in this time, smoothly, > 0.
        length: for cosine: the decay ends at this time; without effect up to `warmup`.
        final: for cosine and plateau: the least share of `peak`, 0 <= final < 1.
        patience: for plateau: epochs without improvement before the rate falls, >= 1.
        min_delta: for plateau: an improvement is larger than this, >= 0.
        cooldown: for plateau: epochs after a fall that count for nothing, >= 0.
        more_is_better: for plateau: whether a larger metric is better.
    """

    peak: float
    decay: Decay = "constant"
    warmup: float = 0.0
    at: tuple[float, ...] = ()
    factor: float = 0.1
    every: float = 1.0
    length: float = math.inf
    final: float = 0.0
    patience: int = 10
    min_delta: float = 0.0
    cooldown: int = 0
    more_is_better: bool = False

    @property
    def is_constant(self) -> bool:
        """Whether all steps have the rate `peak`."""
        return self.decay == "constant" and not self.warmup


def rate_of_step(
    schedule: RateSchedule,
    step: int,
    steps_per_epoch: int,
    monitored: Sequence[float] = (),
    own: Callable[[int, int], float] | None = None,
) -> float:
    """The learning rate of a step.

    Args:
        schedule: how it changes.
        step: number of the step since the DNN's first, from 0.
        steps_per_epoch: >= 1.
        monitored: for plateau: the metric of each epoch before the step's, in order; NaN never improves.
        own: for `own`: called with `step` and `steps_per_epoch`; the warm-up scales what it returns.

    Source: linear warm-up: P. Goyal et al., arXiv:1706.02677, 2017, Sec. 2.2; cosine: I. Loshchilov and
        F. Hutter, arXiv:1608.03983, 2016, Eq. 5 without restarts; plateau: as Keras' ReduceLROnPlateau.
    """
    time = step / steps_per_epoch
    warmup_steps = schedule.warmup * steps_per_epoch
    warm = min(1.0, (step + 1) / warmup_steps) if warmup_steps > 1.0 else 1.0
    if schedule.decay == "own":
        assert own is not None
        return warm * own(step, steps_per_epoch)
    return schedule.peak * warm * _share(schedule, time, monitored)


def _share(schedule: RateSchedule, time: float, monitored: Sequence[float]) -> float:
    """The rate as a share of `peak`, without the warm-up."""
    decaying = max(0.0, time - schedule.warmup)
    match schedule.decay:
        case "step":
            return schedule.factor ** bisect.bisect_right(schedule.at, time + 1e-9)
        case "exponential":
            return float(schedule.factor ** (decaying / schedule.every))
        case "cosine":
            span = schedule.length - schedule.warmup  # <= 0 if a warm-up in steps outlasts the training
            done = min(1.0, decaying / span) if span > 0.0 else float(decaying > 0.0)
            return schedule.final + (1.0 - schedule.final) * 0.5 * (1.0 + math.cos(math.pi * done))
        case "plateau":
            return max(schedule.final, schedule.factor ** num_falls(schedule, monitored))
    return 1.0


def num_falls(schedule: RateSchedule, monitored: Sequence[float]) -> int:
    """How often the rate has fallen after these epochs; see `RateSchedule.patience`."""
    sign = 1.0 if schedule.more_is_better else -1.0
    best, waited, cooling, falls = -math.inf, 0, 0, 0
    for value in monitored:
        if cooling > 0:
            cooling, waited = cooling - 1, 0
        if sign * value > best + schedule.min_delta:
            best, waited = sign * value, 0
        elif cooling == 0:
            waited += 1
            if waited >= schedule.patience:
                falls, cooling, waited = falls + 1, schedule.cooldown, 0
    return falls
