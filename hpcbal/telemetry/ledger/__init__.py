"""The ledger: what happened in a run, one typed line per event (docs/ledger.md)."""

from hpcbal.telemetry.ledger.choices import PredictionFacts, ScheduleChosenLine, ScheduleFacts, SlotsIdleLine
from hpcbal.telemetry.ledger.codec import LEDGER_SCHEMA, Entry
from hpcbal.telemetry.ledger.dnns import (
    BestKeptLine,
    CheckpointDamagedLine,
    CheckpointWrittenLine,
    DnnDoneLine,
    DnnFailedLine,
    DnnPrunedLine,
    DnnRetriedLine,
    InitialWeightsLine,
    ModelWarningLine,
    RateMeasuredLine,
)
from hpcbal.telemetry.ledger.epochs import (
    BalanceFacts,
    EpochDoneLine,
    EpochFacts,
    PartitionFacts,
    RankFacts,
    Straggler,
)
from hpcbal.telemetry.ledger.file import Ledger, lines_of, read_ledger, scan_ledger
from hpcbal.telemetry.ledger.line import Facts, Line
from hpcbal.telemetry.ledger.paramserver import (
    JobDoneLine,
    JobEpochLine,
    JobFailedLine,
    JobSavedLine,
    ReconfiguredLine,
    RolesAssignedLine,
    WorkerFacts,
)
from hpcbal.telemetry.ledger.preprocessing import BadSampleLine, PreprocessingMeasuredLine
from hpcbal.telemetry.ledger.registry import LINE_BY_EVENT
from hpcbal.telemetry.ledger.rounds import (
    GpuLeftOutLine,
    GroupFacts,
    GroupLeftLine,
    LeaveRoundLine,
    PassStartedLine,
    PlanFacts,
    ProfilingStartedLine,
    RoundEndedLine,
    RoundStartedLine,
    StartedAloneLine,
)
from hpcbal.telemetry.ledger.run import (
    NodeFacts,
    PredictionLine,
    RunFinishedLine,
    RunStartedLine,
    SuspendRequestedLine,
)
from hpcbal.telemetry.ledger.scan import LedgerScan

__all__ = [
    "LEDGER_SCHEMA",
    "LINE_BY_EVENT",
    "BadSampleLine",
    "BalanceFacts",
    "BestKeptLine",
    "CheckpointDamagedLine",
    "CheckpointWrittenLine",
    "DnnDoneLine",
    "DnnFailedLine",
    "DnnPrunedLine",
    "DnnRetriedLine",
    "Entry",
    "EpochDoneLine",
    "EpochFacts",
    "Facts",
    "GpuLeftOutLine",
    "GroupFacts",
    "GroupLeftLine",
    "InitialWeightsLine",
    "JobDoneLine",
    "JobEpochLine",
    "JobFailedLine",
    "JobSavedLine",
    "LeaveRoundLine",
    "Ledger",
    "LedgerScan",
    "Line",
    "ModelWarningLine",
    "NodeFacts",
    "PartitionFacts",
    "PassStartedLine",
    "PlanFacts",
    "PredictionFacts",
    "PredictionLine",
    "PreprocessingMeasuredLine",
    "ProfilingStartedLine",
    "RankFacts",
    "RateMeasuredLine",
    "ReconfiguredLine",
    "RolesAssignedLine",
    "RoundEndedLine",
    "RoundStartedLine",
    "RunFinishedLine",
    "RunStartedLine",
    "ScheduleChosenLine",
    "ScheduleFacts",
    "SlotsIdleLine",
    "StartedAloneLine",
    "Straggler",
    "SuspendRequestedLine",
    "WorkerFacts",
    "lines_of",
    "read_ledger",
    "scan_ledger",
]
