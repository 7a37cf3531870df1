"""The ensemble's state machine: messages, states, transitions, instructions; no IO."""

from hpcbal.control.ensemble import Ensemble, replay
from hpcbal.control.event_log import ControlError
from hpcbal.control.messages import (
    CheckpointWritten,
    DnnFailed,
    EpochDone,
    EpochRecord,
    Event,
    Finish,
    GroupLeft,
    GroupPlan,
    Instruction,
    LeaveRound,
    NextPass,
    Position,
    PreprocessingMeasured,
    RateMeasured,
    RoundPlan,
    Started,
    StartProfiling,
    StartRound,
    StopStream,
    SuspendGroups,
    SuspendRequested,
)
from hpcbal.control.progress import (
    DnnProgress,
    DnnSpec,
    ResumeState,
    ScheduleSettings,
)
from hpcbal.control.resume_json import round_plan_from_dict, round_plan_to_dict
from hpcbal.control.states import DnnState, Phase
from hpcbal.control.stopping import StopDecision, StopRule, evaluate

__all__ = [
    "CheckpointWritten",
    "ControlError",
    "DnnFailed",
    "DnnProgress",
    "DnnSpec",
    "DnnState",
    "Ensemble",
    "EpochDone",
    "EpochRecord",
    "Event",
    "Finish",
    "GroupLeft",
    "GroupPlan",
    "Instruction",
    "LeaveRound",
    "NextPass",
    "Phase",
    "Position",
    "PreprocessingMeasured",
    "RateMeasured",
    "ResumeState",
    "RoundPlan",
    "ScheduleSettings",
    "StartProfiling",
    "StartRound",
    "Started",
    "StopDecision",
    "StopRule",
    "StopStream",
    "SuspendGroups",
    "SuspendRequested",
    "evaluate",
    "replay",
    "round_plan_from_dict",
    "round_plan_to_dict",
]
