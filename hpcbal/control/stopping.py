"""End DNNs that the user asks to stop: after their pass, or at once where no group holds them.

The request is remembered only until the DNN has left. What a later start needs is in the run's directory: the
request itself, and the line that says that the DNN was stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpcbal.control.state import Group
from hpcbal.control.states import DnnState, Leaving, Phase
from hpcbal.events.ensemble import Instruction
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
