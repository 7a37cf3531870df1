"""Explain why slots are idle in a round although DNNs wait."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hpcbal.control.core import Core, must_measure
from hpcbal.control.rounds import num_gpus_of
from hpcbal.control.states import Phase

MOST_NAMES = 4


@dataclass(frozen=True, slots=True)
class IdleSlots:
    """Slots that no DNN of the round uses.

    Attributes:
        round_index: index of the round.
        num_idle: number of these slots, >= 1.
        waiting: DNNs that wait for a later round, at least one.
        why: the rule that keeps them waiting, for people.
        change: what would change it, for people.
    """

    round_index: int
    num_idle: int
    waiting: tuple[str, ...]
    why: str
    change: str


def idle_slots(core: Core) -> IdleSlots | None:
    """The idle slots of the round that runs; None if there are none, or no DNN waits for one."""
    s, plan = core.state, core.state.plan
    if s.phase is not Phase.ROUND or core.is_independent or plan is None or s.suspend_reason:
        return None
    busy = {group.dnn_id: len(group.gpus) for group in s.staying_groups()}
    waiting = tuple(d for d in s.candidate_ids() if d not in s.groups)
    num_idle = core.cluster.num_gpus - sum(busy.values())
    if not busy or not waiting or num_idle < 1 or plan.last_pass is not None or must_measure(core):
        return None
    has_shrunk = sum(busy.values()) < num_gpus_of(plan)
    why, change = _after_leaving(core, busy) if has_shrunk else _from_the_start(core, waiting, num_idle)
    if core.is_auto:
        change = f"schedule auto predicts that other schedules take longer ({change})"
    return IdleSlots(plan.index, num_idle, waiting, why, change)


def _from_the_start(core: Core, waiting: Sequence[str], num_idle: int) -> tuple[str, str]:
    """The flotilla did not use all slots."""
    s, settings = core.state, core.settings
    if settings.delta is None:
        return "each DNN of this schedule has one slot", "schedule.paradigm: global gives DNNs several slots"
    joined = [d for d in s.groups if d not in s.kept]
    fastest = max(joined or s.groups, key=lambda d: s.rates.rate(d, 1))
    reference = s.rates.rate(fastest, 1)
    limit = settings.max_gpus_per_dnn or num_idle
    most = {d: min(num_idle, limit, core.batch_sizes[d]) for d in waiting}
    nearest_s, nearest = min(
        (abs(s.rates.rate(d, m) - reference), d) for d in waiting for m in range(1, most[d] + 1)
    )
    if nearest_s <= settings.delta.samples_per_s(reference):
        return "some slots are left out of DNNs that train faster without them", "balance.regroup: false"
    why = (
        f"{_names(waiting)}: no rate within delta ({settings.delta}) of {reference:.0f} samples/s, "
        f"the rate of {fastest}"
    )
    share = math.ceil(100.0 * nearest_s / reference)
    return why, f"schedule.delta: {share}% would let {nearest} join; schedule.delta: auto chooses for you"


def _after_leaving(core: Core, busy: dict[str, int]) -> tuple[str, str]:
    """DNNs of the round are done, and the round goes on without them."""
    plan, settings = core.state.plan, core.settings
    assert plan is not None
    if settings.alpha is None:
        return (
            f"a round of {settings.paradigm} lasts until all of its DNNs are done",
            "schedule.paradigm: auto chooses another where that is faster",
        )
    total = num_gpus_of(plan)
    if sum(busy.values()) < settings.alpha * total:
        return (
            "a new round would have the same DNNs on the same slots",
            "a larger schedule.delta may let others join",
        )
    return (
        f"a round ends when fewer than alpha ({settings.alpha:g}) of its {total} slots are busy",
        "a higher schedule.alpha ends rounds sooner; schedule.alpha: auto chooses for you",
    )


def _names(dnn_ids: Sequence[str]) -> str:
    shown = ", ".join(dnn_ids[:MOST_NAMES])
    return shown if len(dnn_ids) <= MOST_NAMES else f"{shown} and {len(dnn_ids) - MOST_NAMES} more"
