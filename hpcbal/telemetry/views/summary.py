"""The numbers that sum up the epochs of a DNN, for tables, results.csv and the report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from hpcbal.values.metric_names import LOSS, VALIDATION, base_name, main_metric, shows_more_better

Number = float | int | None

Metrics = Mapping[str, float | None]
"""Metrics of an epoch by name; None and NaN are values that are not known."""

BEST, FINAL = "best_", "final_"
"""Prefixes of the keys of a summary: over all epochs, and of the last epoch."""

BEST_EPOCH = "best_epoch"

SAVED = ("saved_best_epoch", "saved_best_value", "saved_last_epoch")
"""Epochs whose weights are on disk: the best one by the stop rule, with its value, and the last one."""


def best_of(epochs: Iterable[Metrics], metric: str) -> float | None:
    """The best value of one metric over all epochs; None if none is known. Only finite values count."""
    values = (epoch.get(metric) for epoch in epochs)
    known = [value for value in values if value is not None and math.isfinite(value)]
    choose = max if shows_more_better(metric) else min
    return choose(known, default=None)


def main_metric_of(epochs_by_job: Iterable[Sequence[Metrics]]) -> str:
    """The metric by which jobs are compared: of the validation samples if any job has a value of it.

    Args:
        epochs_by_job: the metrics of the epochs of each job.
    """
    jobs = [list(epochs) for epochs in epochs_by_job]
    jobs_with_epochs = [epochs for epochs in jobs if epochs]
    if not jobs_with_epochs:
        return f"{VALIDATION}accuracy"
    main = main_metric(epochs[0] for epochs in jobs_with_epochs)
    for metric in (VALIDATION + main, main):
        if any(best_of(epochs, metric) is not None for epochs in jobs_with_epochs):
            return metric
    return VALIDATION + main


def summary_of(
    epochs: Sequence[Metrics], numbers: Sequence[int] | None = None, main: str = ""
) -> dict[str, Number]:
    """Sum up the epochs of a DNN.

    Args:
        epochs: the metrics of each completed epoch, in order.
        numbers: of these epochs, where some have no metrics; None: 1, 2, ...
        main: the main metric; empty: the one by which DNNs are compared.

    Returns:
        `best_epoch` (from 1), the first epoch with the best value of the main metric; and for each metric
        with a known value `best_`, over all epochs, and `final_`, of the last epoch. The main metric comes
        first, and validation samples before training samples.
    """
    main = main or main_metric_of([epochs])
    found: dict[str, Number] = {BEST_EPOCH: None}
    for metric in _in_order(epochs, base_name(main)):
        best = best_of(epochs, metric)
        if best is None:
            continue
        last = epochs[-1].get(metric)
        found[f"{BEST}{metric}"] = best
        found[f"{FINAL}{metric}"] = last if last is not None and math.isfinite(last) else None
        if metric == main:
            index = [epoch.get(metric) for epoch in epochs].index(best)
            found[BEST_EPOCH] = 1 + index if numbers is None else numbers[index]
    return found


def _in_order(epochs: Sequence[Metrics], main: str) -> list[str]:
    names = dict.fromkeys(base_name(name) for epoch in epochs for name in epoch)
    ordered = list(dict.fromkeys([main, LOSS, *names]))
    return [prefix + name for prefix in (VALIDATION, "") for name in ordered]


def metric_title(metric: str) -> str:
    """A metric as the head of a column: `val accuracy`, `train accuracy`."""
    return f"{'val' if metric.startswith(VALIDATION) else 'train'} {_text(metric)}"


def short_title(metric: str) -> str:
    """The same, short enough for a line for each pass: `val acc`."""
    return metric_title(metric).replace("accuracy", "acc")


def metric_words(metric: str) -> str:
    """A metric in a sentence: `validation accuracy`, `training loss`."""
    return f"{'validation' if metric.startswith(VALIDATION) else 'training'} {_text(metric)}"


def _text(metric: str) -> str:
    return base_name(metric).replace("_", " ")
