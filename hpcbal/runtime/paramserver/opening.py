"""Open the run of a parameter-server job on rank 0: directory, lock, ledger, and the last checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcbal.config import ParamServerConfig, PsJobConfig, add_import_roots, resolved_yaml
from hpcbal.errors import ExitCode, OutputError
from hpcbal.events.line import Line
from hpcbal.paramserver.machine.stopping import JobStop
from hpcbal.runtime.handoff.end_file import note_progress
from hpcbal.runtime.handoff.launch_dir import RunRequest, output_of
from hpcbal.runtime.paramserver.checkpoint import SavedJob, read_saved
from hpcbal.telemetry import Claim, Ledger, RunDirectory, RunLock, claim_output
from hpcbal.telemetry.ledger import JobDoneLine, JobFailedLine, JobSavedLine, RunStartedLine, scan_ledger


class FailedJobError(OutputError):
    """The job in the directory has failed."""

    exit_code = ExitCode.FAILED_DNNS


JOBS = "jobs"
"""Name of the folder of jobs in the output directory."""


@dataclass(frozen=True, slots=True)
class OpenedJob:
    """A run whose directory this process holds until `close`.

    Attributes:
        request: the request of this start.
        config: the configuration.
        run: paths of the run's files.
        lock: the lock of the directory.
        ledger: the open ledger.
        saved: the last checkpoint; None if there is none.
        last_saved: what the ledger says of that checkpoint; None: nothing.
        claim: whether the directory held this run before, and how its config has changed.
        notes: what people should know about how it was opened.
    """

    request: RunRequest
    config: ParamServerConfig
    run: RunDirectory
    lock: RunLock
    ledger: Ledger
    saved: SavedJob | None
    last_saved: JobSavedLine | None
    claim: Claim
    notes: Sequence[str] = ()

    def close(self) -> None:
        """Give the directory back."""
        self.ledger.close()
        self.lock.release()


def open_job(request: RunRequest, config: ParamServerConfig) -> OpenedJob:
    """Open or create the run's directory.

    Raises:
        OutputError: if the directory is not writable, full, locked, not made by hpcbal, or another run's.
        CheckpointError: if the checkpoint cannot be used.
        FailedJobError: if the job has failed and is not to be tried again.
    """
    add_import_roots(request.config_path)
    run = RunDirectory(output_of(request, config).root, JOBS)
    claim, lock = claim_output(run.root, resolved_yaml(config), request.resume, JOBS)
    notes = list(claim.notes)
    try:
        scan = scan_ledger(run.ledger)
        if scan.problem is not None:
            notes.append(scan.problem)
        saved = read_saved(run.job(config.name))
        if saved is None and any(run.job(config.name).glob("checkpoint-*")):
            notes.append(
                f"{run.job(config.name)}: no whole checkpoint, so training starts from the beginning"
            )
        failed = failure_in([entry.line for entry in scan.entries])
        if failed is not None and not request.retry_failed:
            raise FailedJobError(
                f"{run.root}: the job has failed ({failed.detail}); to try again from its checkpoint, run "
                "the same command with --retry-failed"
            )
        ledger = Ledger(run.ledger, scan, on_progress=note_progress)
    except BaseException:
        lock.release()
        raise
    lines = reversed([entry.line for entry in scan.entries])
    last_saved = next((line for line in lines if isinstance(line, JobSavedLine)), None)
    if saved is None:
        last_saved = None
    return OpenedJob(request, config, run, lock, ledger, saved, last_saved, claim, notes)


def stop_rule(config: PsJobConfig) -> JobStop:
    """When a job is over."""
    stop = config.stop
    return JobStop(stop.max_epochs, stop.monitor, stop.mode, stop.target, stop.patience, stop.min_delta)


def failure_in(lines: Sequence[Line]) -> JobFailedLine | None:
    """Why the job failed in the last start that ended it, by its ledger; None if it did not."""
    kinds = JobDoneLine | JobFailedLine | RunStartedLine
    last = next((line for line in reversed(lines) if isinstance(line, kinds)), None)
    return last if isinstance(last, JobFailedLine) else None
