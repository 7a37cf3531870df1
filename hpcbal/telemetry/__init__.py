"""Ledger, metrics, status, results, logs, progress, and the output directory they live in."""

from hpcbal.telemetry.atomic_file import output_error, write_atomic, write_json_atomic
from hpcbal.telemetry.environment import environment_versions
from hpcbal.telemetry.ledger import LEDGER_SCHEMA, Ledger, read_ledger
from hpcbal.telemetry.metrics import MetricsWriter, read_metrics
from hpcbal.telemetry.output import claim_output, prepare_output
from hpcbal.telemetry.progress import Progress
from hpcbal.telemetry.rank_log import RankLogging, configure_rank_logging
from hpcbal.telemetry.results import ResultRow, read_results, render_results, write_results
from hpcbal.telemetry.run_directory import RunDirectory
from hpcbal.telemetry.run_lock import RunLock
from hpcbal.telemetry.status import (
    STATUS_SCHEMA,
    DnnStatus,
    PreprocessingStatus,
    Status,
    new_status,
    read_status,
    write_status,
)
from hpcbal.telemetry.status_table import render_status

__all__ = [
    "LEDGER_SCHEMA",
    "STATUS_SCHEMA",
    "DnnStatus",
    "Ledger",
    "MetricsWriter",
    "PreprocessingStatus",
    "Progress",
    "RankLogging",
    "ResultRow",
    "RunDirectory",
    "RunLock",
    "Status",
    "claim_output",
    "configure_rank_logging",
    "environment_versions",
    "new_status",
    "output_error",
    "prepare_output",
    "read_ledger",
    "read_metrics",
    "read_results",
    "read_status",
    "render_results",
    "render_status",
    "write_atomic",
    "write_json_atomic",
    "write_results",
    "write_status",
]
