"""Let a DNN go on without a GPU that holds its group up.

A group's master offers to do without a GPU; the ensemble decides by these rules:

- An offer counts while the DNN trains on that GPU and others, once per DNN and GPU, and one at a time: what a
  group would be without a second GPU it must show without the first. Any other offer is ignored: of a DNN
  that is leaving, done or failed, of a GPU that its group does not have, or the only one.
- At the end of the pass the round ends. If its paradigm would end it there anyway, the next round is as that
  wants it. Otherwise it is the same round without that GPU: all others keep their GPUs, and with
  them the weights in memory, so that it costs them no more than a checkpoint and forming the groups.
- The GPU is free for whom the paradigm gives it to: with `local` a DNN that waits gets it at once; with
  `global` it counts as idle against alpha, and is dealt out with the next flotilla.
- The DNN does not get that GPU again, in this start or a later one on nodes with as many GPUs, unless nothing
  else is left for it; `hpcbal.policies.left_out` tells how the others help it to that.

Source: [LBBSP] Sec. 3.3.2, Alg. 2, line 5, leaves it to the user to remove a straggler.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpcbal.control.core import Core
from hpcbal.control.messages import Instruction, LeaveOut, RemovalOffered
from hpcbal.control.state import EnsembleState, Group
from hpcbal.control.states import DnnState


def on_removal_offered(core: Core, event: RemovalOffered) -> list[Instruction]:
    """Take the offer, to be acted on at the end of the pass, or ignore it."""
    s, dnn = core.state, core.dnn_of(event)
    group = s.groups.get(event.dnn_id)
    if group is None or dnn.state is not DnnState.RUNNING or group.leaving:
        return []
    if event.gpu not in group.gpus or len(group.gpus) == 1 or _shrinks(s, group):
        return []
    s.left_out[event.dnn_id] = (*s.left_out.get(event.dnn_id, ()), event.gpu)
    return [LeaveOut(event.dnn_id, event.gpu)]


def num_remaining(state: EnsembleState, groups: Iterable[Group]) -> dict[str, int]:
    """GPUs by DNN with which the groups go on."""
    return {group.dnn_id: len(state.remaining(group.dnn_id, group.gpus)) for group in groups}


def what_shrinks(state: EnsembleState, groups: Iterable[Group]) -> str:
    """For people: which of the groups go on without which GPU; empty if none does."""
    return ", ".join(
        f"{group.dnn_id} goes on without GPU {gpu}"
        for group in groups
        for gpu in group.gpus
        if gpu not in state.remaining(group.dnn_id, group.gpus)
    )


def _shrinks(state: EnsembleState, group: Group) -> bool:
    return state.remaining(group.dnn_id, group.gpus) != group.gpus
