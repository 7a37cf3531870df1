"""The files and messages of a run: ledger, metrics, status, results, logs, progress, output directory."""

from hpcbal.telemetry.claim.directory import claim_output, prepare_output
from hpcbal.telemetry.claim.run_lock import RunLock
from hpcbal.telemetry.claim.same_config import is_same_config
from hpcbal.telemetry.files.atomic_file import output_error, write_atomic, write_json_atomic
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.host.environment import environment_versions
from hpcbal.telemetry.ledger import LEDGER_SCHEMA, Ledger, read_ledger
from hpcbal.telemetry.streams.metrics import MetricsWriter, read_metrics
from hpcbal.telemetry.streams.rank_log import RankLogging, configure_rank_logging
from hpcbal.telemetry.views.ensemble_status import DnnStatus, EnsembleStatus, PreprocessingStatus, new_status
from hpcbal.telemetry.views.read_status import read_status
from hpcbal.telemetry.views.results import ResultRow, read_results, render_results, write_results
from hpcbal.telemetry.views.status import STATUS_SCHEMA, write_status
from hpcbal.telemetry.views.status_table import render_status

__all__ = [
    "LEDGER_SCHEMA",
    "STATUS_SCHEMA",
    "DnnStatus",
    "EnsembleStatus",
    "Ledger",
    "MetricsWriter",
    "PreprocessingStatus",
    "RankLogging",
    "ResultRow",
    "RunDirectory",
    "RunLock",
    "claim_output",
    "configure_rank_logging",
    "environment_versions",
    "is_same_config",
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
