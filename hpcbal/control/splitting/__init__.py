"""The state machine that splits the steps of a trainer group over its ranks."""

from hpcbal.control.splitting.machine import Splitting, replay
from hpcbal.control.splitting.messages import (
    Announced,
    Announcement,
    AskPolicy,
    Decided,
    GiveUp,
    Offer,
    PolicyFailed,
    SplitAction,
    SplitEvent,
    StepMeasured,
)
from hpcbal.control.splitting.rules import SplitRules, scaled_to_step, step_task

__all__ = [
    "Announced",
    "Announcement",
    "AskPolicy",
    "Decided",
    "GiveUp",
    "Offer",
    "PolicyFailed",
    "SplitAction",
    "SplitEvent",
    "SplitRules",
    "Splitting",
    "StepMeasured",
    "replay",
    "scaled_to_step",
    "step_task",
]
