"""Profiling and rounds: what comes next, and what is decided at the end of each pass.

A group that ends a pass also reports which slot it could do without, if any. The ensemble decides by these
rules:

- Only the offer at the end of the pass counts. What a group found inside the pass and no longer finds at its
  end was a short burst of other load. Offers from groups that are leaving, done or failed do not count, and
  neither does an offer of the only slot. A group that stops before the pass is decided must offer again.
- One slot at a time: only training without the first slot shows whether the group also needs to drop a
  second.
- The round ends with that pass. If its paradigm would end it there anyway, the paradigm decides the next
  round. Otherwise the next round is the same without that slot: all other DNNs keep their slots and the
  weights in memory, so it costs them only a checkpoint and the forming of the groups.
- The paradigm decides who gets the slot: with `local`, a waiting DNN gets it at once; with `global`, it
  counts as idle against alpha, and the next flotilla may use it.
- The DNN does not get that slot again, in this start or a later one on the same hosts, unless no other slot
  is left for it; `hpcbal.policies.staying` describes how other DNNs swap slots with it.

Source: [LBBSP] Sec. 3.3.2, Alg. 2, line 5, leaves the removal of a straggler to the user.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from hpcbal.control import elastic, rounds
from hpcbal.control.paradigms import needs_rates
from hpcbal.control.profiling import measures_in_rounds, missing_jobs, next_wave, place_wave
from hpcbal.control.progress import ScheduleSettings, check_monitored, evaluate
from hpcbal.control.pruning import prune_at_pass_end, prune_between_rounds
from hpcbal.control.state import EnsembleState, Group
from hpcbal.control.states import STATE_WHEN_SAVED, DnnState, Leaving, Phase
from hpcbal.control.stopping import ask_for_round, ends_round, stop_at_pass_end, stop_waiting
from hpcbal.errors import InputError
from hpcbal.events.ensemble import (
    WITHOUT_ROUNDS,
    ChooseSchedule,
    EpochDone,
    GroupPlan,
    Instruction,
    LeaveOut,
    NextPass,
    RateMeasured,
    RoundPlan,
    ScheduleChosen,
    StartProfiling,
    StartRound,
)
from hpcbal.events.history import EpochRecord, Position

if TYPE_CHECKING:
    from hpcbal.control.ensemble import Ensemble


def offer_of(group: Group, event: EpochDone, settings: ScheduleSettings) -> int | None:
    """The slot that the group may drop, if it offers one."""
    may = (
        settings.regroup and event.offered_slot in group.slots and len(group.slots) > 1 and not group.leaving
    )
    return event.offered_slot if may else None


def what_shrinks(groups: Iterable[Group]) -> str:
    """For people: which groups would go on without which slot; empty if none would."""
    shown = [
        f"{g.dnn_id} goes on without slot {g.offered_slot}" for g in groups if g.offered_slot is not None
    ]
    return ", ".join(shown)


def leave_out(state: EnsembleState, groups: Iterable[Group]) -> list[LeaveOut]:
    """Accept the offers of `groups`, which all leave now."""
    instructions = []
    for group in groups:
        if group.offered_slot is not None:
            state.left_out[group.dnn_id] = (*state.left_out.get(group.dnn_id, ()), group.offered_slot)
            instructions.append(LeaveOut(group.dnn_id, group.offered_slot))
    return instructions


# ---- profiling: waves of groups that measure the missing rates -----------------------------------


def profile_or_train(ensemble: Ensemble) -> list[Instruction]:
    """No group is left: start the next profiling wave, or the first round once all rates are known.

    Raises:
        InputError: if a rate on one slot is not known and the settings do not allow measuring it.
    Source: [FLEET] Alg. 1, line 1; App. B.3.
    """
    s = ensemble.state
    s.rates, s.fresh_rates = s.all_rates(), {}
    if s.suspend_reason or not s.live_ids():
        return next_round(ensemble)
    if not needs_rates(ensemble.given.paradigm):
        return next_round(ensemble)
    if not ensemble.settings.profile:
        unknown = [dnn_id for dnn_id in s.live_ids() if not s.rates.is_measured(dnn_id, 1)]
        if unknown:
            raise InputError(
                f"the rates of {', '.join(unknown)} on 1 slot are not known and profiling is off; "
                "give them in the rate table or let hpcbal profile"
            )
        return next_round(ensemble)
    if measures_in_rounds(ensemble.settings, ensemble.cluster.num_slots):
        return next_round(ensemble)
    to_measure = s.live_ids()
    if ensemble.given.paradigm in WITHOUT_ROUNDS:  # then the ring has room for the batches of these only
        to_measure = [spec.dnn_id for spec in ensemble.origin_specs if spec.dnn_id in s.live]
    jobs = missing_jobs(
        to_measure, list(s.dnns), s.rates, ensemble.cluster, ensemble.settings, ensemble.batch_sizes
    )
    if not jobs:
        return next_round(ensemble)
    s.phase = Phase.PROFILING
    groups = place_wave(next_wave(jobs, ensemble.cluster.num_slots), ensemble.cluster)
    for group in groups:
        ensemble.move(s.dnns[group.dnn_id], DnnState.PROFILING)
        s.groups[group.dnn_id] = Group(group.dnn_id, group.slots, is_profiling=True)
        s.note_built(group.dnn_id, group.slots)
    return [StartProfiling(groups)]


def on_rate_measured(ensemble: Ensemble, event: RateMeasured) -> list[Instruction]:
    """A group of the running wave, or of a round, has measured its rate."""
    s, dnn = ensemble.state, ensemble.dnn_of(event)
    if dnn.state is DnnState.FAILED:
        return []
    group = s.groups.get(event.dnn_id)
    if group is None or group.is_measured:
        raise ensemble.unexpected(event, dnn, "one RateMeasured of a DNN in a profiling wave or a round")
    if event.num_slots != len(group.slots) or not 0.0 < event.samples_per_s < float("inf"):
        raise ensemble.unexpected(event, dnn, f"a rate > 0 on {len(group.slots)} slots")
    group.is_measured = True
    if event.start_s:
        s.start_s[event.dnn_id, True] = event.start_s
    if not group.is_profiling:
        s.rates = s.rates.with_measurement(event.dnn_id, event.num_slots, event.samples_per_s)
        return []
    s.fresh_rates[event.dnn_id, event.num_slots] = event.samples_per_s
    return []


# ---- which round comes next --------------------------------------------------------------------


def next_round(ensemble: Ensemble) -> list[Instruction]:
    """No group is left: continue the interrupted round, finish stopped passes, or form a new flotilla.

    Source: [FLEET] Alg. 1, lines 3 to 5.
    """
    s = ensemble.state
    if s.suspend_reason or ensemble.settings.profile_only:
        return ensemble.finish()
    stop_waiting(ensemble)
    prune_between_rounds(ensemble)
    if asked := ask_for_round(ensemble):
        s.phase = Phase.CHOOSING
        return asked
    if not s.live_ids():
        return ensemble.finish()
    ensemble.bound_log()
    can_choose = ensemble.is_auto and not ensemble.must_measure
    if can_choose and s.choice is None:
        return _ask(ensemble)
    if not ensemble.has_rounds:  # until the last DNN: without rounds there is no moment to choose again
        return _train_alone(ensemble)
    plan = _continued_round(ensemble)
    if plan is None and can_choose and s.choice is not None and s.choice.is_due(len(s.live)):
        return _ask(ensemble)
    return _start_round(ensemble, plan or _planned_round(ensemble))


def _ask(ensemble: Ensemble) -> list[Instruction]:
    ensemble.state.phase = Phase.CHOOSING
    choice = ensemble.state.choice
    return [ChooseSchedule(ensemble.candidates, None if choice is None else choice.schedule, ensemble.basis)]


def on_schedule_chosen(ensemble: Ensemble, event: ScheduleChosen) -> list[Instruction]:
    """The schedule of the next round is known."""
    s = ensemble.state
    if s.phase is Phase.FINISHED and s.suspend_reason:
        return []  # the run was stopped while the answer was on its way
    if s.phase is not Phase.CHOOSING or event.schedule not in ensemble.candidates:
        allowed = "one of the candidates, once, after ChooseSchedule"
        raise ensemble.error(f"got {event!r} in phase {s.phase}; allowed: {allowed}")
    s.choice = event
    stop_waiting(ensemble)
    if not s.live:
        return next_round(ensemble)
    if not ensemble.has_rounds:
        return _train_alone(ensemble)
    return _start_round(ensemble, _continued_round(ensemble) or _planned_round(ensemble))


def _train_alone(ensemble: Ensemble) -> list[Instruction]:
    """Every DNN continues at its own position, whatever rounds there were."""
    ensemble.state.interrupted, ensemble.state.kept = None, {}
    return elastic.fill_slots(ensemble)


def _planned_round(ensemble: Ensemble) -> RoundPlan:
    """No interrupted round continues: finish stopped passes, or form a new flotilla."""
    s = ensemble.state
    plan = _catch_up_round(ensemble)
    if plan is None:
        plan = _new_round(ensemble, s.candidate_ids(), s.next_pass, kept=s.kept)
    return plan


def _continued_round(ensemble: Ensemble) -> RoundPlan | None:
    """Take the interrupted round, without finished DNNs and left-out slots; None if there is none left."""
    s, num_positions = ensemble.state, ensemble.settings.num_positions
    interrupted, s.interrupted = s.interrupted, None
    if interrupted is None:
        return None
    groups, position = [], {}
    for group in interrupted.groups:
        dnn, planned_pass = s.dnns.get(group.dnn_id), interrupted.start[group.dnn_id].pass_index
        if dnn is None or not dnn.is_live:
            continue
        if rounds.has_unfinished_pass_before(planned_pass, dnn.position, num_positions):
            continue
        groups.append(GroupPlan(group.dnn_id, s.remaining(group.dnn_id, group.slots)))
        position[group.dnn_id] = rounds.next_position(planned_pass, dnn.position, dnn.history, num_positions)
    if not groups:
        return None
    first_pass = min(p.pass_index for p in position.values())
    if all(p == Position(first_pass) for p in position.values()):
        # All DNNs stand between two passes: the decision that was due is taken again, with the same result.
        going_on = {g.dnn_id: len(g.slots) for g in groups}
        if _is_over(ensemble, interrupted, first_pass - 1, going_on):
            s.kept = {group.dnn_id: group.slots for group in groups}
            return None
    rates = dict(interrupted.predicted_rate_samples_per_s)
    before = {group.dnn_id: len(group.slots) for group in interrupted.groups}
    for group in groups:
        if len(group.slots) < before[group.dnn_id] and group.dnn_id in rates:
            rates[group.dnn_id] = s.rates.rate(group.dnn_id, len(group.slots))
    return RoundPlan(
        index=s.next_round_index,
        groups=tuple(groups),
        first_pass=first_pass,
        start={d: rounds.start_of(p, first_pass, num_positions) for d, p in position.items()},
        epochs={d: s.dnns[d].epochs for d in position},
        num_preprocessors=ensemble.planner().num_preprocessors([rates.get(d) for d in position]),
        predicted_rate_samples_per_s={d: rates[d] for d in position if d in rates},
        num_slots=rounds.num_slots_of(interrupted),
        last_pass=interrupted.last_pass,
    )


def _catch_up_round(ensemble: Ensemble) -> RoundPlan | None:
    """A round that finishes the pass of DNNs stopped inside the same pass; None if there are none.

    Needed when the allocation has changed, so that the interrupted round cannot continue as it was.
    """
    s, num_positions = ensemble.state, ensemble.settings.num_positions
    if not ensemble.has_resumed:
        return None
    position = {
        d: p
        for d in s.live_ids()
        if (p := s.dnns[d].position) is not None and rounds.is_inside_pass(p, num_positions)
    }
    if not position:
        return None
    first_pass = min(p.pass_index for p in position.values())
    start = {d: p for d, p in position.items() if p.pass_index == first_pass}
    return _new_round(ensemble, list(start), first_pass, start, last_pass=first_pass)


def _new_round(
    ensemble: Ensemble,
    candidates: Sequence[str],
    first_pass: int,
    start: dict[str, Position] | None = None,
    last_pass: int | None = None,
    kept: Mapping[str, tuple[int, ...]] | None = None,
) -> RoundPlan:
    s, chosen_from = ensemble.state, set(candidates)
    return ensemble.planner().new_round(
        candidates,
        index=s.next_round_index,
        first_pass=first_pass,
        start=start or {},
        epochs_of=lambda dnn_id: s.dnns[dnn_id].epochs,
        last_pass=last_pass,
        kept={d: slots for d, slots in (kept or {}).items() if d in chosen_from},
    )


def _start_round(ensemble: Ensemble, plan: RoundPlan) -> list[Instruction]:
    s = ensemble.state
    s.kept, plan = {}, ensemble.measuring(plan)
    s.phase, s.plan, s.pass_index = Phase.ROUND, plan, plan.first_pass
    s.next_round_index = plan.index + 1
    s.next_pass = max(s.next_pass, plan.first_pass + 1)
    for planned in plan.groups:
        dnn, start = s.dnns[planned.dnn_id], plan.start[planned.dnn_id]
        ensemble.move(dnn, DnnState.RUNNING)
        dnn.position = None
        group = Group(planned.dnn_id, planned.slots)
        if start.offset == ensemble.settings.num_positions:
            group.reported_pass = start.pass_index
        else:
            group.training_pass, group.reported_pass = start.pass_index, start.pass_index - 1
        s.groups[planned.dnn_id] = group
        s.note_built(planned.dnn_id, planned.slots)
    return [StartRound(plan)]


# ---- the end of a pass -------------------------------------------------------------------------


def on_epoch_done(ensemble: Ensemble, event: EpochDone) -> list[Instruction]:
    """A group has finished the pass that it trained."""
    dnn = ensemble.dnn_of(event)
    if dnn.state is DnnState.FAILED:
        return []
    group = ensemble.state.groups.get(event.dnn_id)
    if group is None or group.training_pass != event.pass_index:
        training = group.training_pass if group is not None else None
        what = "none is trained" if training is None else f"it trains pass {training}"
        raise ensemble.unexpected(event, dnn, f"EpochDone of the pass that it trains ({what})")
    record = EpochRecord(
        dnn.epochs + 1, event.pass_index, dict(event.metrics), event.seconds, event.facts.evidence
    )
    check_monitored(dnn.spec.stop, record)  # report a missing metric before anything is changed
    dnn.history.append(record)
    group.training_pass, group.reported_pass, group.is_saved = None, event.pass_index, False
    group.offered_slot = offer_of(group, event, ensemble.settings)
    return decide(ensemble) if ensemble.has_rounds else elastic.on_pass_end(ensemble, group, event)


def decide(ensemble: Ensemble) -> list[Instruction]:
    """Once all groups have finished the pass: decide which DNNs have converged and whether the round ends.

    Usually one pass is decided. More than one is decided when groups that were behind after a crash drop out
    and the others are ahead.

    Source: [FLEET] Sec. 4.3.2, "Training". Deviation: all groups are judged at the end of the pass,
        together, so that the result does not depend on which group reports first.
    """
    s = ensemble.state
    instructions: list[Instruction] = []
    if s.phase is not Phase.ROUND or not ensemble.has_rounds:
        return instructions
    assert s.plan is not None
    if any(not g.leaving and g.reported_pass < s.pass_index for g in reversed(s.groups.values())):
        return instructions  # most reports are not the last one of a pass
    while staying := s.staying_groups():
        finished = min(group.reported_pass for group in staying)
        if finished < s.pass_index:
            break
        waiting = [g for g in staying if g.reported_pass == finished and g.training_pass is None]
        instructions += _leave_if_converged(ensemble, waiting)
        instructions += stop_at_pass_end(ensemble, waiting)
        instructions += prune_at_pass_end(ensemble, waiting, finished)
        staying = s.staying_groups()
        shrinks, is_newest = what_shrinks(staying), finished + 1 >= s.next_pass
        is_over = _is_over(ensemble, s.plan, finished, {g.dnn_id: len(g.wanted_slots) for g in staying})
        if is_over or (shrinks and is_newest):  # else some groups are ahead, and may be inside a pass
            if is_over:
                s.kept = {group.dnn_id: group.slots for group in staying}
            else:
                s.interrupted = s.plan
            instructions += leave_out(s, staying)
            return instructions + [ensemble.leave(group, Leaving.REGROUP, shrinks) for group in staying]
        instructions += _next_pass(ensemble, [g for g in waiting if not g.leaving], finished + 1)
    return instructions


def _leave_if_converged(ensemble: Ensemble, groups: Sequence[Group]) -> list[Instruction]:
    instructions: list[Instruction] = []
    for group in groups:
        dnn = ensemble.state.dnns[group.dnn_id]
        decision = evaluate(dnn.spec.stop, dnn.history)
        if decision is not None:
            instructions.append(ensemble.leave(group, Leaving.CONVERGED, decision.detail))
    return instructions


def _is_over(ensemble: Ensemble, plan: RoundPlan, finished: int, going_on: dict[str, int]) -> bool:
    """Whether the round ends with pass `finished`, after which `going_on` (slots by DNN) would continue."""
    s = ensemble.state
    if not going_on or (plan.last_pass is not None and finished >= plan.last_pass):
        return True
    if finished + 1 < s.next_pass:
        return False  # the round had begun the next pass when it was interrupted: this was already decided
    if ensemble.settings.profile and ensemble.lacks_rates and ensemble.cluster.num_slots > 1:
        # A DNN has joined, or failed before it had a rate: what measures it comes next.
        return True
    if ends_round(ensemble, going_on, rounds.num_slots_of(plan)):
        return True
    leaving = {g.dnn_id for g in s.groups.values() if g.leaving in STATE_WHEN_SAVED}

    def candidates() -> list[str]:
        return [dnn_id for dnn_id in s.candidate_ids() if dnn_id not in leaving]

    return ensemble.planner().must_regroup(going_on, rounds.num_slots_of(plan), candidates)


def _next_pass(ensemble: Ensemble, groups: Sequence[Group], pass_index: int) -> list[Instruction]:
    """Let `groups`, which wait at the end of the pass before, continue; groups ahead are not addressed."""
    s = ensemble.state
    s.pass_index = pass_index
    s.next_pass = max(s.next_pass, pass_index + 1)
    if not groups:
        return []
    for group in groups:
        group.training_pass, group.offered_slot = pass_index, None
    dnn_ids = tuple(group.dnn_id for group in groups)
    return [NextPass(dnn_ids, pass_index, dnn_ids if ensemble.settings.checkpoint_every_pass else ())]
