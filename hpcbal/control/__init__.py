"""The ensemble's state machine: messages, states, transitions, instructions; no IO."""

from hpcbal.control.candidates import candidates
from hpcbal.control.ensemble import Ensemble, replay
from hpcbal.control.error import ControlError
from hpcbal.control.idle import IdleSlots
from hpcbal.control.messages import (
    CheckpointWritten,
    ChooseSchedule,
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
    ScheduleChosen,
    StartAlone,
    Started,
    StartProfiling,
    StartRound,
    StopStream,
    SuspendGroups,
    SuspendRequested,
)
from hpcbal.control.paradigms import INDEPENDENT, PARADIGM_NAMES, is_random
from hpcbal.control.progress import (
    DnnProgress,
    DnnSpec,
    ResumeState,
    ScheduleSettings,
)
from hpcbal.control.schedules import AUTO, Choice, Prediction, Schedule, choose
from hpcbal.control.states import DnnState, Phase
from hpcbal.control.stopping import StopDecision, StopRule, evaluate

__all__ = [
    "AUTO",
    "INDEPENDENT",
    "PARADIGM_NAMES",
    "CheckpointWritten",
    "Choice",
    "ChooseSchedule",
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
    "IdleSlots",
    "Instruction",
    "LeaveOut",
    "LeaveRound",
    "NextPass",
    "Phase",
    "Prediction",
    "PreprocessingMeasured",
    "RateMeasured",
    "ResumeState",
    "RoundPlan",
    "Schedule",
    "ScheduleChosen",
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
    "candidates",
    "choose",
    "evaluate",
    "is_random",
    "replay",
]
