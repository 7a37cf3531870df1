"""Remove a GPU that slows down a DNN's trainer group.

A group that ends a pass also reports which GPU it could do without, if any. The ensemble decides by these
rules:

- Only the offer at the end of the pass counts. What a group found inside the pass and no longer finds at its
  end was a short burst of other load. Offers from groups that are leaving, done or failed do not count, and
  neither does an offer of the only GPU. A group that stops before the pass is decided must offer again.
- One GPU at a time: only training without the first GPU shows whether the group also needs to drop a second.
- The round ends with that pass. If its paradigm would end it there anyway, the paradigm decides the next
  round. Otherwise the next round is the same without that GPU: all other DNNs keep their GPUs and the weights
  in memory, so it costs them only a checkpoint and the forming of the groups.
- The paradigm decides who gets the GPU: with `local`, a waiting DNN gets it at once; with `global`, it counts
  as idle against alpha, and the next flotilla may use it.
- The DNN does not get that GPU again, in this start or a later one on the same hosts, unless no other GPU is
  left for it; `hpcbal.policies.left_out` describes how other DNNs swap GPUs with it.

Source: [LBBSP] Sec. 3.3.2, Alg. 2, line 5, leaves the removal of a straggler to the user.
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
    """For people: which groups would go on without which GPU; empty if none would."""
    shown = [f"{g.dnn_id} goes on without slot {g.offered_gpu}" for g in groups if g.offered_gpu is not None]
    return ", ".join(shown)


def leave_out(state: EnsembleState, groups: Iterable[Group]) -> list[LeaveOut]:
    """Accept the offers of `groups`, which all leave now."""
    instructions = []
    for group in groups:
        if group.offered_gpu is not None:
            state.left_out[group.dnn_id] = (*state.left_out.get(group.dnn_id, ()), group.offered_gpu)
            instructions.append(LeaveOut(group.dnn_id, group.offered_gpu))
    return instructions
