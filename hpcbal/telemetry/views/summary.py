"""The numbers that sum up the epochs of a DNN, for tables, results.csv and the report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

Number = float | int | None

METRICS: Mapping[str, bool] = {"val_accuracy": True, "val_loss": False, "accuracy": True, "loss": False}
"""Metrics of an epoch; True if more is better."""

NUMBERS = ("best_epoch", *(f"{which}_{metric}" for metric in METRICS for which in ("best", "final")))
"""Keys of a summary: `best_` is over all epochs, `final_` is the last epoch, whose weights are saved."""

SAVED = ("saved_best_epoch", "saved_best_value", "saved_last_epoch")
"""Epochs whose weights are on disk: the best one by the stop rule, with its value, and the last one."""


def best_of(epochs: Iterable[Mapping[str, float | None]], metric: str) -> float | None:
    """The best value of one metric over all epochs; None if none is known."""
    values = (epoch.get(metric) for epoch in epochs)
    known = [value for value in values if value is not None and value == value]
    choose = max if METRICS[metric] else min
    return choose(known, default=None)


def summary_of(epochs: Sequence[Mapping[str, float | None]]) -> dict[str, Number]:
    """Sum up the epochs of a DNN.

    Args:
        epochs: the metrics of each completed epoch, in order; None and NaN are values that are not known.

    Returns:
        A value for each of `NUMBERS`. `best_epoch` (from 1) is the first epoch with the best validation
        accuracy, or the best training accuracy in a run without validation data.
    """
    found: dict[str, Number] = dict.fromkeys(NUMBERS)
    for metric, more_is_better in METRICS.items():
        best = best_of(epochs, metric)
        if best is None:
            continue
        last = epochs[-1].get(metric)
        found[f"best_{metric}"] = best
        found[f"final_{metric}"] = None if last is None or math.isnan(last) else last
        if more_is_better and found["best_epoch"] is None:
            found["best_epoch"] = 1 + [epoch.get(metric) for epoch in epochs].index(best)
    return found
