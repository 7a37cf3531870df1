"""Decide from a DNN's history whether its training is done."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hpcbal.errors import InputError
from hpcbal.values import EpochRecord

MODES = ("max", "min")


@dataclass(frozen=True, slots=True)
class StopRule:
    """When a DNN counts as converged; checked after every epoch.

    Attributes:
        monitor: metric in `EpochRecord.metrics` that target and patience use.
        mode: 'max' if larger is better, 'min' if smaller is better.
        min_delta: an epoch improves on the best one only if it is better by more than this, >= 0.
        patience: stop after this many epochs in a row without improvement, >= 1; None: never.
        target: stop once the metric is this good or better; None: never.
        max_epochs: stop after this many epochs whatever the metric, >= 1.

    Raises:
        InputError: if a value is out of its range.
    """

    monitor: str = "val_accuracy"
    mode: str = "max"
    min_delta: float = 0.0
    patience: int | None = None
    target: float | None = None
    max_epochs: int = 1

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InputError(f"stop.mode: got {self.mode!r}, allowed: {', '.join(map(repr, MODES))}")
        if not (math.isfinite(self.min_delta) and self.min_delta >= 0):
            raise InputError(f"stop.min_delta: got {self.min_delta}, allowed: a finite number >= 0")
        if self.patience is not None and self.patience < 1:
            raise InputError(
                f"stop.patience: got {self.patience}, allowed: an integer >= 1, or null for never"
            )
        if self.target is not None and not math.isfinite(self.target):
            raise InputError(f"stop.target: got {self.target}, allowed: a finite number, or null for none")
        if self.max_epochs < 1:
            raise InputError(f"stop.max_epochs: got {self.max_epochs}, allowed: an integer >= 1")


@dataclass(frozen=True, slots=True)
class StopDecision:
    """Why a DNN is done.

    Attributes:
        reason: 'target', 'patience' or 'max_epochs', the first of these that holds.
        epoch: epochs completed when it stopped, >= 1.
        detail: the rule with its numbers, for people.
        best_value: best value of the monitored metric; None if it was never a number.
        best_epoch: the epoch (from 1) that reached it; 0 if none did.
    """

    reason: str
    epoch: int
    detail: str
    best_value: float | None
    best_epoch: int


@dataclass(frozen=True, slots=True)
class Best:
    """Best value of the monitored metric, its epoch, and the epochs since the last improvement."""

    value: float | None
    epoch: int
    num_stale_epochs: int


def check_monitored(rule: StopRule, record: EpochRecord) -> None:
    """Raise InputError if an epoch lacks the monitored metric; the message lists those it has."""
    if rule.monitor not in record.metrics:
        known = ", ".join(sorted(record.metrics)) or "none"
        raise InputError(
            f"stop.monitor: got {rule.monitor!r}, but epoch {record.epoch} has the metrics: {known}"
        )


def best(rule: StopRule, history: Sequence[EpochRecord]) -> Best:
    """Follow the monitored metric through `history`.

    The best value is the best one seen. Staleness counts from the last epoch that beat the reference by more
    than `min_delta`. The reference is the value at the previous improvement, so many tiny gains that add up
    to `min_delta` count as one improvement. A NaN never improves anything.

    Raises:
        InputError: if an epoch lacks the monitored metric; the message lists those it has.
    """
    sign = 1.0 if rule.mode == "max" else -1.0
    top, top_epoch, reference, reference_epoch = -math.inf, 0, -math.inf, 0
    for record in history:
        check_monitored(rule, record)
        value = sign * record.metrics[rule.monitor]
        if math.isnan(value):
            continue
        if value > top:
            top, top_epoch = value, record.epoch
        if reference_epoch == 0 or value > reference + rule.min_delta:
            reference, reference_epoch = value, record.epoch
    last_epoch = history[-1].epoch if history else 0
    return Best(sign * top if top_epoch else None, top_epoch, last_epoch - reference_epoch)


def evaluate(rule: StopRule, history: Sequence[EpochRecord]) -> StopDecision | None:
    """Decide whether a DNN with this history is done, and by which rule.

    Args:
        rule: the DNN's stop rule.
        history: its completed epochs in order; `epoch` counts from 1.

    Returns:
        The decision, or None if the DNN must continue. If several rules hold, the first in the order target,
        patience, max_epochs is named. The answer depends only on the history, so it is the same after a
        resume.

    Raises:
        InputError: if an epoch lacks the monitored metric.

    Source: [FLEET] Sec. 4.3.2 checks convergence at the end of each epoch and leaves the criterion open;
        patience and min_delta follow the common early-stopping rule.
    """
    if not history:
        return None
    epoch = history[-1].epoch
    if rule.target is None and rule.patience is None and epoch < rule.max_epochs:
        check_monitored(rule, history[-1])
        return None  # at once: a simulated run asks at the end of every pass
    found = best(rule, history)
    reason, detail = "", ""
    if rule.target is not None and found.value is not None and _reached(rule, found.value):
        sign = ">=" if rule.mode == "max" else "<="
        reason, detail = "target", f"{rule.monitor} {found.value:.6g} {sign} target {rule.target:.6g}"
    elif rule.patience is not None and found.num_stale_epochs >= rule.patience:
        detail = f"{rule.monitor} did not improve for {found.num_stale_epochs} epochs"
        if found.value is not None:
            detail += f" (best {found.value:.6g} in epoch {found.epoch})"
        reason = "patience"
    elif epoch >= rule.max_epochs:
        reason, detail = "max_epochs", f"{epoch} of at most {rule.max_epochs} epochs"
    return StopDecision(reason, epoch, detail, found.value, found.epoch) if reason else None


def _reached(rule: StopRule, value: float) -> bool:
    assert rule.target is not None
    return value >= rule.target if rule.mode == "max" else value <= rule.target
