"""The ensemble's state machine: messages, states, transitions, instructions; no IO."""

from hpcbal.control.ensemble import Ensemble, replay
from hpcbal.control.error import ControlError
from hpcbal.control.messages import (
    CheckpointWritten,
    DnnFailed,
    EpochDone,
    Event,
    Finish,
    GroupLeft,
    GroupPlan,
    Instruction,
    LeaveOut,
    LeaveRound,
    NextPass,
    PreprocessingMeasured,
    RateMeasured,
    RoundPlan,
    StartAlone,
    Started,
    StartProfiling,
    StartRound,
    StopStream,
    SuspendGroups,
    SuspendRequested,
)
from hpcbal.control.paradigms import INDEPENDENT, PARADIGM_NAMES
from hpcbal.control.progress import (
    DnnProgress,
    DnnSpec,
    ResumeState,
    ScheduleSettings,
)
from hpcbal.control.states import DnnState, Phase
from hpcbal.control.stopping import StopDecision, StopRule, evaluate

__all__ = [
    "INDEPENDENT",
    "PARADIGM_NAMES",
    "CheckpointWritten",
    "ControlError",
    "DnnFailed",
    "DnnProgress",
    "DnnSpec",
    "DnnState",
    "Ensemble",
    "EpochDone",
    "Event",
    "Finish",
    "GroupLeft",
    "GroupPlan",
    "Instruction",
    "LeaveOut",
    "LeaveRound",
    "NextPass",
    "Phase",
    "PreprocessingMeasured",
    "RateMeasured",
    "ResumeState",
    "RoundPlan",
    "ScheduleSettings",
    "StartAlone",
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
]
