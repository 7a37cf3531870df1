"""When a parameter-server job is over: the rule of ensembles, on the app's own metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hpcbal.control.progress import evaluate
from hpcbal.errors import InputError
from hpcbal.events.history import EpochRecord, shows_more_better
from hpcbal.events.members import StopRule
from hpcbal.policies.loss_curve import epochs_to_target


@dataclass(frozen=True, slots=True)
class JobStop:
    """When the job has converged; checked after every objective.

    Attributes:
        max_epochs: >= 1.
        monitor: metric that the other rules watch; None: the app's first one.
        mode: `min`, `max`, or `auto`: as the name of the metric says.
        target: stop at this value or a better one; None: never.
        patience: stop after so many objectives in a row without improvement, >= 1; None: never.
        min_delta: smallest change that counts as an improvement, >= 0.
    """

    max_epochs: int
    monitor: str | None = None
    mode: str = "auto"
    target: float | None = None
    patience: int | None = None
    min_delta: float = 0.0

    def monitored(self, metrics: Mapping[str, float]) -> str:
        """The metric that is watched.

        Raises:
            InputError: if the app has no such metric, or none.
        """
        name = self.monitor if self.monitor is not None else next(iter(metrics), None)
        if name is None or name not in metrics:
            known = ", ".join(metrics) or "none"
            raise InputError(f"stop.monitor: got {name!r}, but the app has the metrics: {known}")
        return name

    def more_is_better(self, metric: str) -> bool:
        """Whether a larger value of the metric is better."""
        return shows_more_better(metric) if self.mode == "auto" else self.mode == "max"

    def epochs_until(self, end: float, epochs: int) -> float:
        """Epochs until an expected end, at least one if the job is not over.

        Args:
            end: see `expected_end`.
            epochs: that are done.
        """
        most = float(self.max_epochs - epochs)
        return most if most <= 0 else min(most, max(1.0, end - epochs))

    def expected_end(self, history: Sequence[EpochRecord], every: int) -> float:
        """The epoch after which the job is expected to end: its curve reaches the target, or `max_epochs`.

        A metric that the app does not report never reaches its target; `why_over` refuses it.

        Args:
            history: one record for each objective, oldest first.
            every: epochs from one objective to the next.
        """
        if self.target is None or not history:
            return float(self.max_epochs)
        monitor = self.monitor if self.monitor is not None else next(iter(history[-1].metrics), "")
        if monitor not in history[-1].metrics:
            return float(self.max_epochs)
        sign = -1.0 if self.more_is_better(monitor) else 1.0
        values = [sign * record.metrics[monitor] for record in history if monitor in record.metrics]
        objectives = epochs_to_target(values, sign * self.target, self.max_epochs)
        return min(float(self.max_epochs), history[-1].epoch + objectives * every)

    def why_over(self, history: Sequence[EpochRecord]) -> str | None:
        """The rule by which the job is over, with its numbers; None if it goes on.

        Args:
            history: one record for each objective, oldest first.
        """
        if not history:
            return None
        last = history[-1]
        monitor = self.monitored(last.metrics)
        rule = StopRule(
            monitor=monitor,
            mode="max" if self.more_is_better(monitor) else "min",
            min_delta=self.min_delta,
            patience=self.patience,
            target=self.target,
            max_epochs=len(history) + 1,
        )
        # Numbered by objectives, so that patience counts them.
        decision = evaluate(rule, [replace(record, epoch=i) for i, record in enumerate(history, start=1)])
        if decision is not None:
            return decision.detail
        return f"{last.epoch} of at most {self.max_epochs} epochs" if last.epoch >= self.max_epochs else None


def why_diverged(metrics: Mapping[str, float], epoch: int) -> str | None:
    """Return the error in an objective that is no number; None if all metrics are finite."""
    bad = [f"{name} is {value}" for name, value in metrics.items() if not math.isfinite(value)]
    if not bad:
        return None
    return (
        f"{', '.join(bad)} after epoch {epoch}: lower the app's step size if the updates have grown beyond "
        "all bounds, or look for NaN or infinite values in the data and in what the app's objective returns"
    )
