"""The report of a run: its values, charts, a self-contained page, and plots."""

from hpcbal.report.model import (
    USE_KINDS,
    EpochPoint,
    GroupWait,
    JobReport,
    LeftOut,
    MachineReport,
    ModelWarning,
    Overhead,
    PredictedDuration,
    Preprocessing,
    RateComparison,
    ReportData,
    RoundReport,
    SharePoint,
    SharingReport,
    SlotSpan,
    SlotUse,
    WorkReport,
)
from hpcbal.report.page.page import render_page, write_page, write_plots
from hpcbal.report.reading.run_files import read_run

__all__ = [
    "USE_KINDS",
    "EpochPoint",
    "GroupWait",
    "JobReport",
    "LeftOut",
    "MachineReport",
    "ModelWarning",
    "Overhead",
    "PredictedDuration",
    "Preprocessing",
    "RateComparison",
    "ReportData",
    "RoundReport",
    "SharePoint",
    "SharingReport",
    "SlotSpan",
    "SlotUse",
    "WorkReport",
    "read_run",
    "render_page",
    "write_page",
    "write_plots",
]
