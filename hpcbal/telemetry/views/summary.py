"""The numbers that sum up a DNN's epochs, its stragglers and the balance of its work."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcbal.events.history import (
    LOSS,
    VALIDATION,
    RankFacts,
    Straggler,
    base_name,
    main_metric,
    shows_more_better,
)


@dataclass(frozen=True, slots=True)
class GroupWork:
    """The work of a group's slots, and the imbalance that is left.

    Attributes:
        relative: work of each slot over the mean of the group, by rank.
        imbalance_left: fraction of the time of the training steps, 0..1, that the slots would wait for the
            slowest one if their speeds were exactly as planned; None if it is not known.
        waited: fraction of that time that they did wait, whatever the reason; None if it is not known.
        num_epochs: number of epochs.
    """

    relative: tuple[float, ...]
    imbalance_left: float | None
    waited: float | None
    num_epochs: int


def group_work(epochs: Iterable[RankFacts]) -> GroupWork | None:
    """Sum up epochs of one group; None if its samples do not differ in size.

    Imbalance left is what samples of unequal size cost after they were dealt: 1 - mean work over
    `slowest_work`, both summed over the steps. Each step counts by itself: a slot with more work in one step
    and less in the next is not balanced. It is free of noise, and of speeds that nobody planned with.

    Waited is the sum of `waited_s` over the sum of `compute_s` and `collective_s`. It holds what other load
    on the machine and unlike speeds cost too. Waiting for data is left out.

    Args:
        epochs: facts about the same ranks; epochs without `work` are left out.
    """
    sized = [(ranks, ranks.work) for ranks in epochs if ranks.work is not None and sum(ranks.work) > 0.0]
    if not sized:
        return None
    work = [sum(of_rank) for of_rank in zip(*(work for _, work in sized), strict=True)]
    mean = sum(work) / len(work)
    slowest = waited_s = steps_s = 0.0
    for ranks, _ in sized:
        slowest += math.nan if ranks.slowest_work is None else ranks.slowest_work
        waited_s += math.nan if ranks.waited_s is None else sum(ranks.waited_s)
        steps_s += sum(ranks.compute_s) + sum(ranks.collective_s)
    waited = _fraction(waited_s, steps_s)
    return GroupWork(
        tuple(each / mean for each in work), _fraction(slowest - mean, slowest), waited, len(sized)
    )


def _fraction(part: float, whole: float) -> float | None:
    """Limited to 0..1, because sums are rounded; None if it is not known."""
    if not whole > 0.0 or math.isnan(part):
        return None
    return min(1.0, max(0.0, part / whole))


LEAST_LATE = 0.1  # fraction of the time of an epoch's training steps; less is noise
COLLECTIVE_SHARE = 0.5  # if the last rank spends more than this in the collective, the all-reduce is slow


def find_straggler(ranks: RankFacts, slots: Sequence[int]) -> Straggler | None:
    """The straggler of an epoch; None if no rank was later than noise explains.

    Args:
        ranks: where the group's ranks, at least two, spent the time of its training steps.
        slots: the group's slots, by rank.
    """
    arrived = [wait + compute for wait, compute in zip(ranks.wait_s, ranks.compute_s, strict=True)]
    last = max(range(len(arrived)), key=lambda rank: (arrived[rank], -rank))
    total_s = arrived[last] + ranks.collective_s[last]
    late_s = arrived[last] - _mean_of_others(arrived, last)
    if late_s >= LEAST_LATE * total_s > 0.0:
        late_by_cause = {
            why: seconds[last] - _mean_of_others(seconds, last)
            for why, seconds in (("compute", ranks.compute_s), ("input", ranks.wait_s))
        }
        return Straggler(slots[last], max(late_by_cause, key=late_by_cause.__getitem__), late_s)
    summing_s = min(ranks.collective_s)  # the last rank waits for no other
    if summing_s > COLLECTIVE_SHARE * total_s:
        return Straggler(None, "collective", summing_s)
    return None


def balancing_would_save(ranks: RankFacts) -> float:
    """Fraction of the time of an epoch's training steps that balancing would save, 0..1.

    Balanced shares of the work are proportional to the ranks' speeds.

    Args:
        ranks: see `find_straggler`.
    """
    worked_s = ranks.worked_s
    work = ranks.samples if ranks.work is None else ranks.work
    pairs = zip(ranks.wait_s, ranks.compute_s, ranks.collective_s, strict=True)
    total_s = max((sum(parts) for parts in pairs), default=0.0)
    if total_s <= 0.0 or min(worked_s) <= 0.0:
        return 0.0
    speed = sum(n / seconds for n, seconds in zip(work, worked_s, strict=True))
    return max(0.0, max(worked_s) - sum(work) / speed) / total_s if speed else 0.0


def _mean_of_others(values: Sequence[float], left_out: int) -> float:
    return (sum(values) - values[left_out]) / (len(values) - 1)


_OMITTED = ("name",)


def differing_settings(config_by_job: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Find the keys whose values differ between jobs, such as those that a sweep varies.

    Args:
        config_by_job: the whole config of each job, with plain values.

    Returns:
        By job, the text of its value by dotted key; all jobs have the same keys, in the order in which the
        configs list them. A key that a job lacks has an empty text.
    """
    flat = {name: dict(flat_settings(config)) for name, config in config_by_job.items()}
    keys = dict.fromkeys(key for settings in flat.values() for key in settings if key not in _OMITTED)
    differing = [key for key in keys if len({settings.get(key, "") for settings in flat.values()}) > 1]
    return {name: {key: settings.get(key, "") for key in differing} for name, settings in flat.items()}


def flat_settings(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted key and the text of each value in nested settings; without those that are None."""
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            yield from flat_settings(below, f"{prefix}.{key}" if prefix else str(key))
    elif prefix and not (isinstance(value, Mapping) or value is None):
        yield prefix, value if isinstance(value, str) else json.dumps(value, default=str)


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
