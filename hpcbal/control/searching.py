"""Ask searches for DNNs when slots are free and nobody waits for them.

A search learns from results, so it is asked as late as possible: DNNs that wait, and those that a pruning
rule promotes, come first ([ASHA] Alg. 2, get_job, which draws a new configuration only if it can promote
none).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hpcbal.control.paradigms import ROUNDING
from hpcbal.control.states import STATE_WHEN_SAVED
from hpcbal.events.ensemble import Instruction, ProposeDnns

if TYPE_CHECKING:
    from hpcbal.control.ensemble import Ensemble


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
