"""The error of the ensemble's state machine, and the DNN that an event is about."""

from __future__ import annotations

from typing import ClassVar

from hpcbal.control.messages import Event
from hpcbal.machines import MachineError


class ControlError(MachineError):
    """The ensemble got an event that cannot happen in its state; `subject` is a DNN's name or empty."""

    machine: ClassVar[str] = "ensemble"


def subject_of(event: Event) -> str | None:
    """The DNN that an event is about; None if it is about the whole ensemble."""
    name: str | None = getattr(event, "dnn_id", None)
    return name
