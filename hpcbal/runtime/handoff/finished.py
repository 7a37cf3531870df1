"""Report a finished run again without starting ranks."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from hpcbal.config import EnsembleConfig, JobsConfig, ParamServerConfig, RunConfig, resolved_yaml
from hpcbal.errors import ExitCode, HpcbalError
from hpcbal.processes import say
from hpcbal.runtime.handoff.launch_dir import RunRequest, output_of
from hpcbal.telemetry import (
    ResultRow,
    RunDirectory,
    clear_dead_lock,
    is_same_config,
    read_results,
    read_status,
    render_results,
)
from hpcbal.telemetry.ledger import RunFinishedLine, scan_ledger
from hpcbal.telemetry.views.kinds import VIEWS

NUM_READERS = 8
"""Number of checkpoints to check at the same time."""

OVER = ("done", "pruned", "failed")
"""States of DNNs that do not train any more."""

CODE_OF_END = {
    "done": ExitCode.DONE,
    "failed-dnns": ExitCode.FAILED_DNNS,
    "failed": ExitCode.FAILED_DNNS,
}
"""Exit codes of the outcomes after which nothing is left to do."""


def report_of_finished(request: RunRequest, config: EnsembleConfig) -> tuple[str, int] | None:
    """The results table and exit code of a finished run; None if something is left to do or to report.

    A run is finished if its last start ended with all DNNs done or failed, with exactly the same config, and
    if its status and its results can be read and the checkpoints of all DNNs that are done are still whole.
    Ranks write a damaged file again. The user decides whether failed DNNs get another try. The lock of a
    process that was killed just after the end is removed.
    """
    run = output_of(request, config)
    if _was_changed_since(run):
        return None
    code = _code_of_end(run, config)
    if request.profile_only or code is None or (request.retry_failed and code != ExitCode.DONE):
        return None
    try:
        read_status(run.root)
        rows = read_results(run.results)
    except HpcbalError:
        return None
    if [row.name for row in rows] != [dnn.name for dnn in config.dnns]:
        return None
    if not all(row.state in OVER for row in rows) or not _are_weights_whole(run, rows):
        return None
    clear_dead_lock(run.root)
    end = "this run has already finished; nothing to do"
    if code == ExitCode.FAILED_DNNS:
        end += "; to give failed DNNs another try, run the same command with --retry-failed"
    return f"{render_results(rows)}\n{files_line(run)}\n{end}", code


def report_of_finished_job(
    request: RunRequest, config: ParamServerConfig | JobsConfig
) -> tuple[str, int] | None:
    """As `report_of_finished`, for parameter-server jobs that have ended and whose results are there."""
    run = output_of(request, config)
    code = None if _was_changed_since(run) else _code_of_end(run, config)
    if (
        request.num_operation_steps is not None
        or code is None
        or (request.retry_failed and code != ExitCode.DONE)
    ):
        return None
    try:
        rows = read_results(run.results)
    except HpcbalError:
        return None
    clear_dead_lock(run.root)
    end = "this run has already finished; nothing to do"
    if code != ExitCode.DONE:
        end += "; to try again, run the same command with --retry-failed"
    return f"{render_results(rows, VIEWS[config.kind])}\n{end}", code


def _are_weights_whole(run: RunDirectory, rows: Sequence[ResultRow]) -> bool:
    from hpcbal.checkpoint import has_trained  # not at the top: h5py takes long to load

    def is_whole(row: ResultRow) -> bool:
        best_epoch = row.numbers.get("saved_best_epoch")
        folder = run.job(row.name)
        return has_trained(folder, row.name, row.epochs, best_epoch=best_epoch, thoroughly=True)

    done = [row for row in rows if row.state == "done"]
    with ThreadPoolExecutor(NUM_READERS) as readers:
        return all(readers.map(is_whole, done))


def _was_changed_since(run: RunDirectory) -> bool:
    """Whether a later start has changed the config (more epochs) and was refused before it trained."""
    try:
        return run.config.stat().st_mtime_ns > run.ledger.stat().st_mtime_ns
    except OSError:  # missing: the ranks check in detail
        return True


def files_line(run: RunDirectory) -> str:
    """The line that names the files of a run."""
    return f"files: {run.root}/ (report.html, results.csv, ledger.jsonl, dnns/<name>/, logs/)"


def _code_of_end(run: RunDirectory, config: RunConfig) -> int | None:
    try:
        same = is_same_config(run.config.read_text(encoding="utf-8"), resolved_yaml(config))
        scan = scan_ledger(run.ledger) if same else None
        last = scan.entries[-1].line if scan is not None else None
    except (OSError, ValueError, IndexError, HpcbalError):  # missing or damaged: the ranks check in detail
        return None
    if not isinstance(last, RunFinishedLine) or last.outcome not in CODE_OF_END:
        return None
    if scan is not None and scan.problem is not None:
        say(f"hpcbal: warning: {scan.problem}")
    return int(CODE_OF_END[last.outcome])
