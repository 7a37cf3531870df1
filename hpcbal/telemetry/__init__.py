"""The files and messages of a run: ledger, metrics, status, results, logs, progress, output directory.

A name is loaded when it is first used: `plan` and `status` need little of this package, and start sooner.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcbal.telemetry.claim.directory import Claim, check_output, claim_output, make_output
    from hpcbal.telemetry.claim.run_lock import RunLock, clear_dead_lock
    from hpcbal.telemetry.claim.same_config import is_same_config
    from hpcbal.telemetry.files.atomic_file import output_error, write_atomic, write_json_atomic
    from hpcbal.telemetry.files.run_directory import RunDirectory
    from hpcbal.telemetry.ledger import LEDGER_SCHEMA, Ledger, read_ledger
    from hpcbal.telemetry.resources.processes import environment_versions
    from hpcbal.telemetry.streams.metrics import MetricsWriter, read_metrics
    from hpcbal.telemetry.streams.rank_log import RankLogging, configure_rank_logging
    from hpcbal.telemetry.views.ensemble_table import (
        DnnStatus,
        EnsembleStatus,
        PreprocessingStatus,
        new_status,
    )
    from hpcbal.telemetry.views.read_status import read_status, render_status
    from hpcbal.telemetry.views.results import ResultRow, read_results, render_results, write_results
    from hpcbal.telemetry.views.status import STATUS_SCHEMA, write_status

__all__ = [
    "LEDGER_SCHEMA",
    "STATUS_SCHEMA",
    "Claim",
    "DnnStatus",
    "EnsembleStatus",
    "Ledger",
    "MetricsWriter",
    "PreprocessingStatus",
    "RankLogging",
    "ResultRow",
    "RunDirectory",
    "RunLock",
    "check_output",
    "claim_output",
    "clear_dead_lock",
    "configure_rank_logging",
    "environment_versions",
    "is_same_config",
    "make_output",
    "new_status",
    "output_error",
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

_MODULE_OF = {
    "LEDGER_SCHEMA": "ledger",
    "STATUS_SCHEMA": "views.status",
    "Claim": "claim.directory",
    "DnnStatus": "views.ensemble_table",
    "EnsembleStatus": "views.ensemble_table",
    "Ledger": "ledger",
    "MetricsWriter": "streams.metrics",
    "PreprocessingStatus": "views.ensemble_table",
    "RankLogging": "streams.rank_log",
    "ResultRow": "views.results",
    "RunDirectory": "files.run_directory",
    "RunLock": "claim.run_lock",
    "check_output": "claim.directory",
    "make_output": "claim.directory",
    "claim_output": "claim.directory",
    "clear_dead_lock": "claim.run_lock",
    "configure_rank_logging": "streams.rank_log",
    "environment_versions": "resources.processes",
    "is_same_config": "claim.same_config",
    "new_status": "views.ensemble_table",
    "output_error": "files.atomic_file",
    "read_ledger": "ledger",
    "read_metrics": "streams.metrics",
    "read_results": "views.results",
    "read_status": "views.read_status",
    "render_results": "views.results",
    "render_status": "views.read_status",
    "write_atomic": "files.atomic_file",
    "write_json_atomic": "files.atomic_file",
    "write_results": "views.results",
    "write_status": "views.status",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
