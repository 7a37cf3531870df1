"""Views of the ensemble's state: as plain JSON, why slots are idle, and what must always be true."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hpcbal.cluster.layout import Cluster
from hpcbal.control.progress import best
from hpcbal.control.rounds import num_slots_of
from hpcbal.control.state import Dnn, EnsembleState, Group
from hpcbal.control.states import TERMINAL, WITH_GROUP, DnnState, Phase
from hpcbal.events.ensemble import IdleSlots
from hpcbal.events.history import finite_metrics

if TYPE_CHECKING:
    from hpcbal.control.ensemble import Ensemble


def render(state: EnsembleState) -> dict[str, Any]:
    """The state for status.json; strict JSON, with null for values that are not known.

    Returns: phase, outcome, suspending (the reason or null), round, pass_index, next_pass,
        num_live, num_done, num_pruned, num_stopped, num_failed, and per DNN: state ('paused' while it waits
        for results of others), epochs, max_epochs, metrics (of the last epoch), monitor, best,
        best_epoch, slots, left_out, leaving, cause, detail.
    """
    in_round = state.phase is Phase.ROUND and state.plan is not None
    states = [str(dnn.state) for dnn in state.dnns.values()]
    return {
        "phase": str(state.phase),
        "outcome": state.outcome or None,
        "suspending": state.suspend_reason or None,
        "round": state.plan.index if state.plan is not None else None,
        "pass_index": state.pass_index if in_round else None,
        "next_pass": state.next_pass,
        "num_live": len(state.live_ids()),
        "num_done": states.count("done"),
        "num_pruned": states.count("pruned"),
        "num_stopped": states.count("stopped"),
        "num_failed": states.count("failed"),
        "dnns": {
            dnn_id: _dnn(
                dnn, state.groups.get(dnn_id), state.left_out.get(dnn_id, ()), state.paused.get(dnn_id, "")
            )
            for dnn_id, dnn in state.dnns.items()
        },
    }


def _dnn(dnn: Dnn, group: Group | None, left_out: tuple[int, ...], paused: str) -> dict[str, Any]:
    found = best(dnn.spec.stop, dnn.history)
    is_paused = bool(paused) and dnn.state is DnnState.WAITING
    best_json = finite_metrics({} if found.value is None else {"best": found.value})
    return {
        "state": "paused" if is_paused else str(dnn.state),
        "epochs": dnn.epochs,
        "max_epochs": dnn.spec.stop.max_epochs,
        "metrics": finite_metrics(dnn.history[-1].metrics) if dnn.history else {},
        "monitor": dnn.spec.stop.monitor,
        "best": best_json.get("best"),
        "best_epoch": found.epoch or None,
        "slots": list(group.slots) if group is not None else [],
        "left_out": list(left_out),
        "leaving": group.leaving or None if group is not None else None,
        "cause": dnn.cause or None,
        "detail": (paused if is_paused else dnn.detail) or None,
    }


MOST_NAMES = 4


def idle_slots(ensemble: Ensemble) -> IdleSlots | None:
    """The idle slots of the round that runs; None if there are none, or no DNN waits for one."""
    s, plan = ensemble.state, ensemble.state.plan
    if s.phase is not Phase.ROUND or not ensemble.has_rounds or plan is None or s.suspend_reason:
        return None
    busy = {group.dnn_id: len(group.slots) for group in s.staying_groups()}
    waiting = tuple(d for d in s.candidate_ids() if d not in s.groups)
    num_idle = ensemble.cluster.num_slots - sum(busy.values())
    if not busy or not waiting or num_idle < 1 or plan.last_pass is not None or ensemble.must_measure:
        return None
    has_shrunk = sum(busy.values()) < num_slots_of(plan)
    why, change = (
        _after_leaving(ensemble, busy) if has_shrunk else _from_the_start(ensemble, waiting, num_idle)
    )
    if ensemble.is_auto:
        change = f"schedule auto predicts that other schedules take longer ({change})"
    return IdleSlots(plan.index, num_idle, waiting, why, change)


def _from_the_start(ensemble: Ensemble, waiting: Sequence[str], num_idle: int) -> tuple[str, str]:
    """The flotilla did not use all slots."""
    s, settings = ensemble.state, ensemble.settings
    if settings.delta is None:
        return "each DNN of this schedule has one slot", "schedule.paradigm: global gives DNNs several slots"
    joined = [d for d in s.groups if d not in s.kept]
    fastest = max(joined or s.groups, key=lambda d: s.rates.rate(d, 1))
    reference = s.rates.rate(fastest, 1)
    limit = settings.max_slots_per_dnn or num_idle
    most = {d: min(num_idle, limit, ensemble.batch_sizes[d]) for d in waiting}
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


def _after_leaving(ensemble: Ensemble, busy: dict[str, int]) -> tuple[str, str]:
    """DNNs of the round are done, and the round goes on without them."""
    plan, settings = ensemble.state.plan, ensemble.settings
    assert plan is not None
    if settings.alpha is None:
        return (
            f"a round of {settings.paradigm} lasts until all of its DNNs are done",
            "schedule.paradigm: auto chooses another where that is faster",
        )
    total = num_slots_of(plan)
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


def problems(state: EnsembleState, cluster: Cluster) -> Iterator[str]:
    """Yield a message for every broken invariant; nothing if all hold."""
    yield from _slots(state, cluster)
    yield from _groups(state)
    yield from _phase(state)
    yield from _lock_step(state)
    yield from _dnns(state)
    yield from _left_out(state, cluster)


def _slots(state: EnsembleState, cluster: Cluster) -> Iterator[str]:
    owner: dict[int, str] = {}
    for dnn_id, slots in state.reserved.items():
        group = state.groups.get(dnn_id)
        if group is None or not group.leaving:
            yield f"slots {slots} are reserved for {dnn_id}, whose group is not about to leave"
        others = {slot for d, each in state.groups.items() if d != dnn_id for slot in each.slots}
        others.update(*(each for d, each in state.reserved.items() if d != dnn_id))
        if others & set(slots):
            yield f"slots {slots} are reserved for {dnn_id}, but others hold some of them"
    for dnn_id, group in state.groups.items():
        if not group.slots:
            yield f"the group of {dnn_id} has no slot"
        for slot in group.slots:
            if not 0 <= slot < cluster.num_slots:
                yield f"{dnn_id} holds slot {slot}, but the allocation has {cluster.num_slots}"
            if slot in owner:
                yield f"slot {slot} is held by {owner[slot]} and {dnn_id}"
            owner[slot] = dnn_id


def _groups(state: EnsembleState) -> Iterator[str]:
    if state.live_ids() != [dnn_id for dnn_id, dnn in state.dnns.items() if dnn.is_live]:
        yield f"the DNNs that go on are not those listed as live: {state.live_ids()}"
    for dnn_id in state.to_stop & (state.dnns.keys() - state.live.keys()):
        yield f"{dnn_id} has ended, but is to be stopped"
    for dnn_id, dnn in state.dnns.items():
        group = state.groups.get(dnn_id)
        if dnn.state in WITH_GROUP and group is None:
            yield f"{dnn_id} is {dnn.state} but has no group"
        if group is None:
            continue
        if dnn.state not in WITH_GROUP | TERMINAL:
            yield f"{dnn_id} is {dnn.state} but has a group"
        if group.is_profiling != (state.phase is Phase.PROFILING):
            yield f"the group of {dnn_id} does not belong to phase {state.phase}"
        if (dnn.state is DnnState.RUNNING) != (not group.is_profiling and not group.leaving):
            yield f"{dnn_id} is {dnn.state} while its group is leaving because {group.leaving!r}"
        if state.plan is not None and state.phase is Phase.ROUND:
            planned = {g.dnn_id: g.slots for g in state.plan.groups}
            if planned.get(dnn_id) != group.slots:
                yield f"{dnn_id} holds slots {group.slots}, planned: {planned.get(dnn_id)}"


def _phase(state: EnsembleState) -> Iterator[str]:
    working = state.phase in (Phase.PROFILING, Phase.ROUND)
    if working != bool(state.groups):
        yield f"phase {state.phase} with {len(state.groups)} groups"
    if (state.phase is Phase.FINISHED) != bool(state.outcome):
        yield f"phase {state.phase} with outcome {state.outcome!r}"
    is_left = bool(state.live_ids()) or bool(state.suspend_reason and state.num_open)
    all_done = all(dnn.state in TERMINAL - {DnnState.FAILED} for dnn in state.dnns.values())
    if state.outcome and (state.outcome == "done") != (all_done and not is_left):
        yield f"outcome {state.outcome!r} contradicts the states of the DNNs"
    if state.outcome and (state.outcome in ("suspended", "profiled")) != is_left:
        yield f"outcome {state.outcome!r} with {len(state.live_ids())} live DNNs"


def _lock_step(state: EnsembleState) -> Iterator[str]:
    """For a round with a shared stream; the independent paradigm has none."""
    if state.phase is Phase.ROUND and state.plan is not None:
        if state.next_pass <= state.pass_index:
            yield f"pass {state.pass_index} runs, but the next unused pass is recorded as {state.next_pass}"
        staying = state.staying_groups()
        if staying and not any(g.training_pass == state.pass_index for g in staying):
            yield f"no group trains pass {state.pass_index}, and nothing was decided"
        if staying and state.suspend_reason:
            yield f"{staying[0].dnn_id} was not asked to suspend"


def _dnns(state: EnsembleState) -> Iterator[str]:
    for dnn_id, dnn in state.dnns.items():
        if [record.epoch for record in dnn.history] != list(range(1, dnn.epochs + 1)):
            yield f"the epochs of {dnn_id} are not counted from 1"
        passes = [record.pass_index for record in dnn.history]
        if any(later <= earlier for earlier, later in itertools.pairwise(passes)):
            yield f"{dnn_id} trained passes out of order: {passes}"
        if dnn.state is DnnState.FAILED and not dnn.cause:
            yield f"{dnn_id} failed without a cause"
        if dnn.state in (DnnState.DONE, DnnState.PRUNED) and not dnn.history:
            yield f"{dnn_id} is {dnn.state} without an epoch"


def _left_out(state: EnsembleState, cluster: Cluster) -> Iterator[str]:
    for dnn_id, slots in state.left_out.items():
        if dnn_id not in state.dnns:
            yield f"{dnn_id} goes on without slots {slots}, but the ensemble has no such DNN"
        if len(set(slots)) < len(slots) or not set(slots) < set(range(cluster.num_slots)):
            allowed = f"not all of {cluster.num_slots}, none twice"
            yield f"{dnn_id} goes on without slots {slots}, allowed: {allowed}"
        group = state.groups.get(dnn_id)
        if group is not None and not group.is_profiling and len(set(group.slots) & set(slots)) > 1:
            yield f"{dnn_id} holds slots {group.slots}, although it goes on without {slots}"
