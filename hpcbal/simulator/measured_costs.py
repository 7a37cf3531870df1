"""Measure the costs of starting and saving from the ledger of an earlier run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hpcbal.events.ensemble import (
    EpochDone,
    GroupLeft,
    LeaveRound,
    RoundPlan,
    StartGroup,
    StartRound,
    StopStream,
)
from hpcbal.events.line import Line
from hpcbal.simulator.costs import Costs
from hpcbal.telemetry.ledger.run import RunStartedLine


@dataclass(slots=True)
class _Observed:
    """Observed seconds, by what they were spent on."""

    staying: list[float] = field(default_factory=list)
    building: list[float] = field(default_factory=list)
    loading: list[float] = field(default_factory=list)
    saving: list[float] = field(default_factory=list)
    deciding: list[float] = field(default_factory=list)


def measured_costs(lines: Iterable[tuple[float, Line]]) -> Costs | None:
    """Mean costs over the rounds of a run.

    A DNN's start is the time from the beginning of its round to the beginning of its first pass, which is
    when its epoch was reported minus the length of that epoch. For a DNN that stayed on its slots, this is
    the time to form groups (`form_s`); what a new or moved DNN takes beyond that is `build_s` or `load_s`.

    Args:
        lines: the ledger's lines in order, each with its time in seconds.

    Returns: None if no round in the ledger reached its first report.
    """
    seen = _Observed()
    slots_of: dict[str, tuple[int, ...]] = {}
    starting: dict[str, tuple[float, list[float]]] = {}  # DNN -> (when its round began, list to append to)
    leaving: dict[str, float] = {}
    round_ended_s: float | None = None
    for time_s, line in lines:
        match line:
            case RunStartedLine():
                slots_of, starting, leaving, round_ended_s = {}, {}, {}, None
            case StartRound(plan) | StartGroup(plan):
                if round_ended_s is not None:
                    seen.deciding.append(time_s - round_ended_s)
                round_ended_s = None
                for dnn_id, slots in plan.slots_of_dnn.items():
                    kind = seen.building if _is_new(dnn_id, plan) and dnn_id not in slots_of else seen.loading
                    stays = set(slots) <= set(slots_of.get(dnn_id, ()))
                    starting[dnn_id] = (time_s, seen.staying if stays else kind)
                    slots_of[dnn_id] = slots
            case EpochDone(dnn_id):
                begun = starting.pop(dnn_id, None)
                if begun is not None and math.isfinite(line.seconds):
                    begun[1].append(max(0.0, time_s - line.seconds - begun[0]))
            case LeaveRound(dnn_id):
                leaving[dnn_id] = time_s
            case GroupLeft(dnn_id):
                told_s = leaving.pop(dnn_id, None)
                if told_s is not None:
                    seen.saving.append(time_s - told_s)
            case StopStream():
                round_ended_s = time_s
    return _costs(seen)


def _is_new(dnn_id: str, plan: RoundPlan) -> bool:
    """Whether a DNN of the plan has never been trained."""
    return plan.epochs[dnn_id] == 0 and plan.start[dnn_id].offset == 0


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
