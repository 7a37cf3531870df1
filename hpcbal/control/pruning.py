"""Ask the pruning rule at the end of a pass, and carry out what it decides.

A DNN that is paused leaves its round like one that has converged, and is no candidate for rounds until the
rule no longer names it. Nothing of this is remembered: the histories of the DNNs decide, so a resumed run
decides the same.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hpcbal.control import rounds
from hpcbal.control.state import Dnn, Group
from hpcbal.control.states import STATE_WHEN_SAVED, DnnState, Leaving
from hpcbal.events.ensemble import Instruction, RoundPlan
from hpcbal.policies.pruning.rules import Candidate, Ruling

if TYPE_CHECKING:
    from hpcbal.control.ensemble import Ensemble


def prune_at_pass_end(ensemble: Ensemble, groups: Sequence[Group], finished: int | None) -> list[Instruction]:
    """Rule on groups that wait at the end of a pass, and on all DNNs that wait for a round.

    Args:
        groups: they leave if the rule says so; those that are leaving already are skipped.
        finished: the last pass that counts; None: every DNN has its own stream, and all epochs count.
    """
    if ensemble.settings.prune is None:
        return []
    ruling = _apply(ensemble, finished)
    instructions: list[Instruction] = []
    for group in groups:
        if group.leaving:
            continue
        for reason, details in ((Leaving.PAUSED, ruling.paused), (Leaving.PRUNED, ruling.pruned)):
            if group.dnn_id in details:
                instructions.append(ensemble.leave(group, reason, details[group.dnn_id]))
    return instructions


def prune_between_rounds(ensemble: Ensemble) -> None:
    """Rule on all DNNs while no group trains; paused and pruned ones leave the interrupted round.

    Its DNNs may have been stopped in different passes. Then only the passes count that all of them have
    finished, as in the run that was interrupted.
    """
    s = ensemble.state
    if ensemble.settings.prune is None:
        return
    while True:
        ruling = _apply(ensemble, _last_common_pass(ensemble, s.interrupted))
        gone = {*ruling.paused, *ruling.pruned}
        if s.interrupted is None or not any(group.dnn_id in gone for group in s.interrupted.groups):
            return
        s.interrupted = without(s.interrupted, gone)


def without(plan: RoundPlan, gone: Collection[str]) -> RoundPlan | None:
    """The plan without the groups of some DNNs; None if no group is left."""
    groups = tuple(group for group in plan.groups if group.dnn_id not in gone)
    return replace(plan, groups=groups, num_slots=rounds.num_slots_of(plan)) if groups else None


def _apply(ensemble: Ensemble, finished: int | None) -> Ruling:
    """Ask the rule; DNNs that wait are paused and pruned at once."""
    s, rule = ensemble.state, ensemble.settings.prune
    assert rule is not None
    compared = [_candidate(ensemble, dnn, finished) for dnn in s.dnns.values() if dnn.spec.may_be_pruned]
    most_epochs = max((candidate.max_epochs for candidate in compared), default=0)
    to_come = [Candidate(f"to come: {number}", (), most_epochs) for number in range(s.num_open)]
    ruling = rule.rule([*compared, *to_come])
    s.paused = dict(ruling.paused)
    for dnn_id, detail in ruling.pruned.items():
        dnn = s.dnns[dnn_id]
        if dnn.state is DnnState.WAITING:
            ensemble.move(dnn, DnnState.PRUNED)
            dnn.detail, dnn.position = detail, None
    return ruling


def _candidate(ensemble: Ensemble, dnn: Dnn, finished: int | None) -> Candidate:
    name, history = dnn.spec.dnn_id, dnn.history
    values = ensemble.signed_values.setdefault(name, [])
    values += [signed(record.metrics, dnn) for record in history[len(values) :]]
    known = len(history)
    while finished is not None and known and history[known - 1].pass_index > finished:
        known -= 1
    rule = ensemble.settings.prune
    needs_evidence = rule is not None and rule.needs_evidence
    group = ensemble.state.groups.get(name)
    is_ahead = known < len(history)  # whatever became of it later, it trained on from here
    is_begun = is_ahead or (group is not None and group.training_pass is not None)
    is_begun |= rounds.is_inside_pass(dnn.position, ensemble.settings.num_positions)
    # It is still live until its checkpoint is written, but nothing may depend on how long that takes.
    is_over = group is not None and group.leaving in STATE_WHEN_SAVED
    return Candidate(
        name,
        values if known == len(values) else values[:known],
        dnn.spec.stop.max_epochs,
        is_live=is_ahead or (dnn.is_live and not is_over),
        has_failed=not is_ahead and dnn.state is DnnState.FAILED,
        is_begun=is_begun,
        evidence=[record.evidence for record in history[:known]] if needs_evidence else (),
    )


def signed(metrics: Mapping[str, float], dnn: Dnn) -> float:
    """Return the monitored metric of an epoch: more is better, -inf where it is not a number."""
    stop = dnn.spec.stop
    value = metrics[stop.monitor]
    if not math.isfinite(value):
        return -math.inf
    return value if stop.mode == "max" else -value


def _last_common_pass(ensemble: Ensemble, plan: RoundPlan | None) -> int | None:
    """The last pass that all live DNNs of the round have finished; None if there is no round."""
    if plan is None:
        return None
    dnns, num_positions = ensemble.state.dnns, ensemble.settings.num_positions
    next_passes = [
        rounds.next_position(plan.start[name].pass_index, dnn.position, dnn.history, num_positions).pass_index
        for group in plan.groups
        if (dnn := dnns.get(name := group.dnn_id)) is not None and dnn.is_live
    ]
    return min(next_passes) - 1 if next_passes else None
