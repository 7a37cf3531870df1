"""Let a DNN join an ensemble that is under way.

It waits like any other DNN. Without rounds it starts as soon as a slot is free. In rounds it is a candidate
for the next one; if the paradigm needs a rate that nobody knows, the round ends with its pass, and the rate
is measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcbal.control.elastic import fill_slots
from hpcbal.control.states import Phase
from hpcbal.events.ensemble import DnnAdded, Instruction

if TYPE_CHECKING:
    from hpcbal.control.ensemble import Ensemble


def on_dnn_added(ensemble: Ensemble, event: DnnAdded) -> list[Instruction]:
    """Take the DNN in; give it a slot if one is free and DNNs train at their own pace."""
    s = ensemble.state
    if event.dnn_id in s.dnns:
        raise ensemble.error(f"got {event!r}, but the ensemble has a DNN {event.dnn_id!r}")
    ensemble.admit(event.spec, event.rates)
    is_filling = s.phase is Phase.ROUND and not ensemble.has_rounds and not s.suspend_reason
    return fill_slots(ensemble) if is_filling else []
