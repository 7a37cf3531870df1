"""Report a finished run again without starting ranks."""

from __future__ import annotations

from hpcbal.config import RunConfig, resolved_yaml
from hpcbal.errors import LAST_OUTCOMES, ExitCode, HpcbalError, code_of_end
from hpcbal.kinds import KINDS, Kind
from hpcbal.processes import say
from hpcbal.runtime.handoff.launch_dir import RunRequest, output_of
from hpcbal.telemetry.claim.run_lock import clear_dead_lock
from hpcbal.telemetry.claim.same_config import is_same_config
from hpcbal.telemetry.files.atomic_file import read_text
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.views.results import read_results, render_results


def report_of_finished(request: RunRequest, config: RunConfig) -> tuple[str, int] | None:
    """The results table and exit code of a finished run; None if something is left to do or to report.

    A run is finished if its last start ended with all jobs done or failed, with exactly the same config, and
    if its results can be read and what it has trained is still whole. Ranks write a damaged file again. The
    user decides whether failed jobs get another try. The lock of a process that was killed just after the end
    is removed.
    """
    run, kind = output_of(request, config), KINDS[config.kind]
    is_measuring = request.profile_only or request.num_operation_steps is not None
    if is_measuring or _was_changed_since(run):
        return None
    code = _code_of_end(run, config)
    if code is None or (request.retry_failed and code != ExitCode.DONE):
        return None
    try:
        rows = read_results(run.results)
    except HpcbalError:
        return None
    if not kind.runs.is_kept(run, config, rows):
        return None
    clear_dead_lock(run.root)
    end = "this run has already finished; nothing to do"
    if code != ExitCode.DONE:
        end += f"; to give failed {kind.job}s another try, run the same command with --retry-failed"
    return f"{render_results(rows, kind)}\n{files_line(run, kind)}\n{end}", code


def _was_changed_since(run: RunDirectory) -> bool:
    """Whether a later start has changed the config (more epochs) and was refused before it trained."""
    try:
        return run.config.stat().st_mtime_ns > run.ledger.stat().st_mtime_ns
    except OSError:  # missing: the ranks check in detail
        return True


def files_line(run: RunDirectory, kind: Kind) -> str:
    """The line that names the files of a run."""
    return f"files: {run.root}/ (report.html, results.csv, ledger.jsonl, {kind.jobs}/<name>/, logs/)"


def _code_of_end(run: RunDirectory, config: RunConfig) -> int | None:
    try:
        if not is_same_config(read_text(run.config), resolved_yaml(config)):
            return None
        from hpcbal.telemetry.ledger.file import scan_ledger
        from hpcbal.telemetry.ledger.run import RunFinishedLine

        scan = scan_ledger(run.ledger)
        last = scan.entries[-1].line
    except (OSError, ValueError, IndexError, HpcbalError):  # missing or damaged: the ranks check in detail
        return None
    if not isinstance(last, RunFinishedLine) or last.outcome not in LAST_OUTCOMES:
        return None
    if scan.problem is not None:
        say(f"hpcbal: warning: {scan.problem}")
    return code_of_end(last.outcome)
