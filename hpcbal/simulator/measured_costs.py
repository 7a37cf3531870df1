"""Learn from the ledger of an earlier run what starting and saving cost."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcbal.simulator.costs import Costs


@dataclass(slots=True)
class _Observed:
    """Seconds seen, by what they were spent on."""

    staying: list[float] = field(default_factory=list)
    building: list[float] = field(default_factory=list)
    loading: list[float] = field(default_factory=list)
    saving: list[float] = field(default_factory=list)
    deciding: list[float] = field(default_factory=list)


def measured_costs(lines: Iterable[tuple[float, Mapping[str, Any]]]) -> Costs | None:
    """Mean costs over the rounds of a run.

    A DNN's start is the time from its round's beginning until its first pass began, which is when its epoch
    was reported minus the length of that epoch. For one that stayed on its GPUs that is what forming groups
    takes (`form_s`); what a new or moved one takes above that is `build_s` or `load_s`.

    Args:
        lines: the ledger's entries in order, each with its time in seconds.

    Returns: None if no round of the ledger has come to its first report.
    """
    seen = _Observed()
    gpus_of: dict[str, tuple[int, ...]] = {}
    starting: dict[str, tuple[float, list[float]]] = {}  # DNN -> (when its round began, where to note it)
    leaving: dict[str, float] = {}
    round_ended_s: float | None = None
    for time_s, line in lines:
        match line.get("event"):
            case "run-started":
                gpus_of, starting, leaving, round_ended_s = {}, {}, {}, None
            case "round-started" | "started-alone":
                if round_ended_s is not None:
                    seen.deciding.append(time_s - round_ended_s)
                round_ended_s = None
                for dnn_id, gpus, is_new in _groups(line["plan"]):
                    kind = seen.building if is_new and dnn_id not in gpus_of else seen.loading
                    stays = set(gpus) <= set(gpus_of.get(dnn_id, ()))
                    starting[dnn_id] = (time_s, seen.staying if stays else kind)
                    gpus_of[dnn_id] = gpus
            case "epoch-done":
                begun = starting.pop(line["dnn"], None)
                if begun is not None:
                    begun[1].append(max(0.0, time_s - float(line["seconds"]) - begun[0]))
            case "leave-round":
                leaving[line["dnn"]] = time_s
            case "group-left":
                told_s = leaving.pop(line["dnn"], None)
                if told_s is not None:
                    seen.saving.append(time_s - told_s)
            case "round-ended":
                round_ended_s = time_s
    return _costs(seen)


def _groups(plan: Mapping[str, Any]) -> Iterable[tuple[str, tuple[int, ...], bool]]:
    """(DNN, its GPUs, whether it has never been trained) of each group of a plan."""
    for group in plan["groups"]:
        dnn_id = group["dnn"]
        is_new = plan["epochs"][dnn_id] == 0 and plan["start"][dnn_id][1] == 0
        yield dnn_id, tuple(group["gpus"]), is_new


def _costs(seen: _Observed) -> Costs | None:
    starts = [kind for kind in (seen.staying, seen.loading, seen.building) if kind]
    if not starts:
        return None
    form_s = _mean(seen.staying) if seen.staying else min(min(kind) for kind in starts)
    return Costs(
        form_s=form_s,
        build_s=max(0.0, _mean(seen.building) - form_s),
        load_s=max(0.0, _mean(seen.loading) - form_s),
        checkpoint_s=_mean(seen.saving),
        scheduling_s=_mean(seen.deciding),
    )


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0
