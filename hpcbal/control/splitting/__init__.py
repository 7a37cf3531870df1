"""The state machine that splits the steps of a trainer group over its ranks."""

from hpcbal.control.splitting.machine import (
    Announced,
    Announcement,
    AskPolicy,
    Decided,
    GiveUp,
    Offer,
    PolicyFailed,
    SplitAction,
    SplitEvent,
    SplitRules,
    Splitting,
    StepMeasured,
    replay,
    scaled_to_step,
    step_task,
)

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
