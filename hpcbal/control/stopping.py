"""DNNs that are asked for while an ensemble is under way: of a search, and those that a user stops.

The request is remembered only until the DNN has left. What a later start needs is in the run's directory: the
request itself, and the line that says that the DNN was stopped.

A search learns from results, so it is asked as late as possible: DNNs that wait, and those that a pruning
rule promotes, come first ([ASHA] Alg. 2, get_job, which draws a new configuration only if it can promote
none).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hpcbal.control.paradigms import ROUNDING
from hpcbal.control.state import Group
from hpcbal.control.states import STATE_WHEN_SAVED, DnnState, Leaving, Phase
from hpcbal.events.ensemble import Instruction, ProposeDnns
from hpcbal.events.members import StopAsked

if TYPE_CHECKING:
    from hpcbal.control.ensemble import Ensemble

STOPPED_BY_USER = "stopped by the user"
"""Why it has ended, for people."""


def on_stop_asked(ensemble: Ensemble, event: StopAsked) -> list[Instruction]:
    """Remember the request, and end those that wait."""
    s = ensemble.state
    unknown = [name for name in event.dnn_ids if name not in s.dnns]
    if unknown:
        raise ensemble.error(f"got {event!r}, but the ensemble has no DNN {unknown[0]!r}")
    s.to_stop |= {name for name in event.dnn_ids if name in s.live}
    if s.phase is not Phase.CHOOSING:  # the answer is for those DNNs that it was asked for
        stop_waiting(ensemble)
    return []


def stop_waiting(ensemble: Ensemble) -> None:
    """End those DNNs that no group holds; those with a group leave when it has finished its pass."""
    s = ensemble.state
    for name in sorted(s.to_stop):
        dnn = s.dnns[name]
        if dnn.state is DnnState.WAITING:
            ensemble.move(dnn, DnnState.STOPPED)
            dnn.detail, dnn.position = STOPPED_BY_USER, None
            s.reserved.pop(name, None)


def stop_at_pass_end(ensemble: Ensemble, groups: Sequence[Group]) -> list[Instruction]:
    """Let those groups leave that wait at the end of a pass and were asked to stop."""
    to_stop = ensemble.state.to_stop
    return [
        ensemble.leave(group, Leaving.STOPPED, STOPPED_BY_USER)
        for group in groups
        if group.dnn_id in to_stop and not group.leaving
    ]


def ask(ensemble: Ensemble, num_free: int) -> list[Instruction]:
    """Ask for a DNN for each of so many slots, as far as searches have any left; only once at a time."""
    s = ensemble.state
    number = min(num_free, s.num_open)
    if s.suspend_reason or s.num_asked or number < 1:
        return []
    s.num_asked = number
    return [ProposeDnns(number)]


def ask_for_round(ensemble: Ensemble) -> list[Instruction]:
    """No group is left: ask for as many DNNs as the next round lacks; an interrupted round lacks none."""
    s = ensemble.state
    if s.interrupted is not None and any(group.dnn_id in s.live for group in s.interrupted.groups):
        return []
    return ask(ensemble, ensemble.cluster.num_slots - len(s.candidate_ids()))


def ends_round(ensemble: Ensemble, going_on: Mapping[str, int], num_slots_of_round: int) -> bool:
    """Whether a round ends because proposed DNNs could use the slots that others have left.

    The paradigm ends it for DNNs that wait; these do not exist yet.
    """
    s, settings = ensemble.state, ensemble.settings
    leaving = {g.dnn_id for g in s.groups.values() if g.leaving in STATE_WHEN_SAVED}
    if not s.num_open or len(set(s.candidate_ids()) - leaving) >= ensemble.cluster.num_slots:
        return False
    busy = sum(going_on.values())
    if settings.paradigm == "local":
        return busy < num_slots_of_round
    return settings.alpha is not None and busy < settings.alpha * num_slots_of_round - ROUNDING
