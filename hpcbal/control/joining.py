"""Let DNNs join an ensemble that is under way, added by the user or proposed by a search.

A DNN that joins waits like any other. Without rounds it starts as soon as a slot is free. In rounds it is a
candidate for the next one; if the paradigm needs a rate that nobody knows, the round ends with its pass, and
the rate is measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcbal.control.elastic import fill_slots
from hpcbal.control.round_phase import profile_or_train
from hpcbal.control.states import Phase
from hpcbal.events.ensemble import Instruction
from hpcbal.events.members import DnnAdded, SearchEnded

if TYPE_CHECKING:
    from hpcbal.control.ensemble import Ensemble


def on_dnn_added(ensemble: Ensemble, event: DnnAdded) -> list[Instruction]:
    """Take the DNN in; give it a slot if one is free and DNNs train at their own pace."""
    s = ensemble.state
    if event.dnn_id in s.dnns:
        raise ensemble.error(f"got {event!r}, but the ensemble has a DNN {event.dnn_id!r}")
    if event.drawn is not None:
        if not s.num_asked:
            raise ensemble.error(f"got {event!r}, but no DNN was asked for")
        s.num_asked -= 1
        s.num_open -= 1
    ensemble.admit(event.spec, event.rates)
    return _go_on(ensemble, is_answer=event.drawn is not None)


def on_search_ended(ensemble: Ensemble, event: SearchEnded) -> list[Instruction]:
    """Go on with the DNNs that there are."""
    ensemble.state.num_open = ensemble.state.num_asked = 0
    return _go_on(ensemble, is_answer=True)


def _go_on(ensemble: Ensemble, *, is_answer: bool) -> list[Instruction]:
    """Once all DNNs that were asked for are there, use them; DNNs that the user adds are used at once."""
    s = ensemble.state
    if s.num_asked or s.suspend_reason:
        return []
    if s.phase is Phase.CHOOSING and not is_answer:
        return []  # a schedule is being chosen
    if s.phase is Phase.CHOOSING and ensemble.has_rounds:
        return profile_or_train(ensemble)
    return [] if ensemble.has_rounds or s.phase is Phase.PROFILING else fill_slots(ensemble)
