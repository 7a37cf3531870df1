"""The class of each kind of line, by the name of its event in the file."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hpcbal.telemetry.ledger.dnn_lines import (
    BestKeptLine,
    CheckpointDamagedLine,
    CheckpointWrittenLine,
    DnnDoneLine,
    DnnFailedLine,
    DnnPrunedLine,
    DnnRetriedLine,
    EpochDoneLine,
    GpuLeftOutLine,
    GroupLeftLine,
    InitialWeightsLine,
    LeaveRoundLine,
    ModelWarningLine,
    PassStartedLine,
    ProfilingStartedLine,
    RateMeasuredLine,
    RoundEndedLine,
    RoundStartedLine,
    ScheduleChosenLine,
    SlotsIdleLine,
    StartedAloneLine,
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
    MachinesUsedLine,
    ReconfiguredLine,
    RolesAssignedLine,
    ThroughputForecastLine,
)
from hpcbal.telemetry.ledger.line import Line
from hpcbal.telemetry.ledger.preprocessing import BadSampleLine, PreprocessingMeasuredLine
from hpcbal.telemetry.ledger.run import (
    PredictionLine,
    RunFinishedLine,
    RunStartedLine,
    SuspendRequestedLine,
)

LINE_BY_EVENT: Mapping[str, type[Line]] = MappingProxyType(
    {
        kind.event: kind
        for kind in (
            RunStartedLine,
            PredictionLine,
            SuspendRequestedLine,
            RunFinishedLine,
            ProfilingStartedLine,
            ScheduleChosenLine,
            RoundStartedLine,
            SlotsIdleLine,
            StartedAloneLine,
            PassStartedLine,
            LeaveRoundLine,
            GpuLeftOutLine,
            GroupLeftLine,
            RoundEndedLine,
            EpochDoneLine,
            ModelWarningLine,
            InitialWeightsLine,
            RateMeasuredLine,
            CheckpointWrittenLine,
            BestKeptLine,
            CheckpointDamagedLine,
            DnnDoneLine,
            DnnPrunedLine,
            DnnFailedLine,
            DnnRetriedLine,
            PreprocessingMeasuredLine,
            BadSampleLine,
            JobSubmittedLine,
            JobsGroupedLine,
            GroupMeasuredLine,
            JobPlacedLine,
            JobRestedLine,
            JobSpilledLine,
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
