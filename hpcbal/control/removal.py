"""Let a DNN go on without a GPU that holds its group up.

A group that ends a pass tells with it which GPU it would do without, if any; the ensemble decides by these
rules:

- What the group found inside the pass, and finds no more at its end, does not count: a burst of other load
  passes. Nor does what a group offers that is leaving, done or failed, nor its only GPU. A group that stops
  before the pass is decided has to find it again.
- One GPU at a time: what a group would be without a second GPU it must show without the first.
- The round ends with that pass. If its paradigm would end it there anyway, the next round is as that
  wants it. Otherwise it is the same round without that GPU: all others keep their GPUs, and with
  them the weights in memory, so that it costs them no more than a checkpoint and forming the groups.
- The GPU is free for whom the paradigm gives it to: with `local` a DNN that waits gets it at once; with
  `global` it counts as idle against alpha, and is dealt out with the next flotilla.
- The DNN does not get that GPU again, in this start or a later one on the same hosts, unless nothing
  else is left for it; `hpcbal.policies.left_out` tells how the others help it to that.

Source: [LBBSP] Sec. 3.3.2, Alg. 2, line 5, leaves it to the user to remove a straggler.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpcbal.control.messages import EpochDone, LeaveOut
from hpcbal.control.progress import ScheduleSettings
from hpcbal.control.state import EnsembleState, Group


def offer_of(group: Group, event: EpochDone, settings: ScheduleSettings) -> int | None:
    """The GPU that the group may drop, if it offers one."""
    may = settings.regroup and event.offered_gpu in group.gpus and len(group.gpus) > 1 and not group.leaving
    return event.offered_gpu if may else None


def what_shrinks(groups: Iterable[Group]) -> str:
    """For people: which of the groups would go on without which GPU; empty if none would."""
    told = [f"{g.dnn_id} goes on without GPU {g.offered_gpu}" for g in groups if g.offered_gpu is not None]
    return ", ".join(told)


def leave_out(state: EnsembleState, groups: Iterable[Group]) -> list[LeaveOut]:
    """Take the offers of `groups`, which all leave now."""
    told = []
    for group in groups:
        if group.offered_gpu is not None:
            state.left_out[group.dnn_id] = (*state.left_out.get(group.dnn_id, ()), group.offered_gpu)
            told.append(LeaveOut(group.dnn_id, group.offered_gpu))
    return told
