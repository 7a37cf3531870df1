"""The error of the ensemble's state machine, and what its events are about."""

from __future__ import annotations

from typing import ClassVar

from hpcbal.control.messages import Event
from hpcbal.machines import MachineError


class ControlError(MachineError):
    """The ensemble got an event that cannot happen in its state; `subject` is the name of a DNN or empty."""

    machine: ClassVar[str] = "ensemble"


def subject_of(event: Event) -> str | None:
    """The DNN that an event is about, None if it is about the whole ensemble."""
    name: str | None = getattr(event, "dnn_id", None)
    return name
