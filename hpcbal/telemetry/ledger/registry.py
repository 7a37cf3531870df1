"""The class of each kind of line, by the name of its event in the file."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hpcbal.events.ensemble import (
    CheckpointWritten,
    DnnAdded,
    DnnFailed,
    EpochDone,
    GroupLeft,
    IdleSlots,
    LeaveOut,
    LeaveRound,
    NextPass,
    PreprocessingMeasured,
    RateMeasured,
    ScheduleChosen,
    StartGroup,
    StartProfiling,
    StartRound,
    StopAsked,
    StopStream,
    SuspendRequested,
)
from hpcbal.events.line import Line
from hpcbal.telemetry.ledger.dnn_lines import (
    BadSampleLine,
    BestKeptLine,
    CheckpointDamagedLine,
    DnnDoneLine,
    DnnPrunedLine,
    DnnRetriedLine,
    DnnStoppedLine,
    InitialWeightsLine,
    ModelWarningLine,
)
from hpcbal.telemetry.ledger.job_lines import (
    ExecutorsChangedLine,
    GroupMeasuredLine,
    JobDoneLine,
    JobEpochLine,
    JobFailedLine,
    JobPlacedLine,
    JobRestedLine,
    JobSavedLine,
    JobsGroupedLine,
    JobSpilledLine,
    JobSubmittedLine,
    MachinesBusyLine,
    MachinesUsedLine,
    ReconfiguredLine,
    RolesAssignedLine,
    ThroughputForecastLine,
)
from hpcbal.telemetry.ledger.run import PredictionLine, RunFinishedLine, RunStartedLine

LINE_BY_EVENT: Mapping[str, type[Line]] = MappingProxyType(
    {
        kind.event: kind
        for kind in (
            RunStartedLine,
            PredictionLine,
            RunFinishedLine,
            SuspendRequested,
            DnnAdded,
            StopAsked,
            StartProfiling,
            ScheduleChosen,
            StartRound,
            IdleSlots,
            StartGroup,
            NextPass,
            LeaveRound,
            LeaveOut,
            GroupLeft,
            StopStream,
            EpochDone,
            RateMeasured,
            CheckpointWritten,
            DnnFailed,
            PreprocessingMeasured,
            ModelWarningLine,
            InitialWeightsLine,
            BestKeptLine,
            CheckpointDamagedLine,
            DnnDoneLine,
            DnnPrunedLine,
            DnnStoppedLine,
            DnnRetriedLine,
            BadSampleLine,
            JobSubmittedLine,
            JobsGroupedLine,
            GroupMeasuredLine,
            JobPlacedLine,
            JobRestedLine,
            JobSpilledLine,
            MachinesBusyLine,
            MachinesUsedLine,
            RolesAssignedLine,
            ThroughputForecastLine,
            JobEpochLine,
            ExecutorsChangedLine,
            ReconfiguredLine,
            JobSavedLine,
            JobDoneLine,
            JobFailedLine,
        )
    }
)
"""In the order of docs/ledger.md."""
