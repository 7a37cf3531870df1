"""Open a run of parameter-server jobs on rank 0: directory, lock, ledger, and what is left to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hpcbal.config import JobsConfig, ParamServerConfig, add_import_roots, resolved_yaml
from hpcbal.config.listed import JOBS
from hpcbal.errors import ExitCode, OutputError
from hpcbal.runtime.handoff.end_file import note_progress
from hpcbal.runtime.handoff.launch_dir import RunRequest, output_of
from hpcbal.runtime.handoff.submissions import submissions_of
from hpcbal.runtime.jobs.checkpoint import JOBS_FOLDER, read_saved
from hpcbal.runtime.jobs.job import Job, jobs_of, stop_rule
from hpcbal.telemetry.claim.directory import Claim, claim_output
from hpcbal.telemetry.claim.run_lock import RunLock
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.ledger.codec import Entry
from hpcbal.telemetry.ledger.file import Ledger, scan_ledger
from hpcbal.telemetry.ledger.job_lines import (
    JobDoneLine,
    JobFailedLine,
    JobPlacedLine,
    JobSavedLine,
    JobStays,
    JobSubmittedLine,
    RolesAssignedLine,
)
from hpcbal.telemetry.ledger.run import RunStartedLine


class FailedJobError(OutputError):
    """The only job in the directory has failed."""

    exit_code = ExitCode.FAILED_DNNS


@dataclass(frozen=True, slots=True)
class OpenedJobs:
    """A run whose directory this process holds until `close`.

    Attributes:
        request: the request of this start.
        config: the configuration.
        run: paths of the run's files.
        lock: the lock of the directory.
        ledger: the open ledger.
        jobs: by name, as earlier starts have left them.
        unrecorded: submitted jobs that the ledger does not mention yet.
        claim: whether the directory held this run before, and how its config has changed.
        notes: what people should know about how it was opened.
    """

    request: RunRequest
    config: ParamServerConfig | JobsConfig
    run: RunDirectory
    lock: RunLock
    ledger: Ledger
    jobs: dict[str, Job]
    unrecorded: frozenset[str]
    claim: Claim
    notes: Sequence[str] = ()

    def close(self) -> None:
        """Give the directory back."""
        self.ledger.close()
        self.lock.release()


def open_one_job(request: RunRequest, config: ParamServerConfig) -> OpenedJobs:
    """Open or create the directory of a job that has all ranks for itself.

    Raises:
        OutputError: if the directory is not writable, full, locked, not made by hpcbal, or another run's.
        CheckpointError: if a checkpoint cannot be used.
        FailedJobError: if the job has failed and is not to be tried again.
    """

    def take(run: RunDirectory, jobs: Mapping[str, Job], entries: Sequence[Entry]) -> None:
        (job,) = jobs.values()
        end = how_jobs_ended(entries).get(job.name)
        if isinstance(end, JobFailedLine) and not request.retry_failed:
            raise FailedJobError(
                f"{run.root}: the job has failed ({end.detail}); to try again from its checkpoint, run "
                "the same command with --retry-failed"
            )
        _take_costs_at_checkpoint(job, entries)

    return _open(request, config, take)


def open_many_jobs(request: RunRequest, config: JobsConfig) -> OpenedJobs:
    """Open or create the directory of jobs that share machines.

    Raises:
        OutputError: if the directory is not writable, full, locked, not made by hpcbal, or another run's.
        CheckpointError: if a checkpoint cannot be used.
    """

    def take(run: RunDirectory, jobs: Mapping[str, Job], entries: Sequence[Entry]) -> None:
        over, used_s = how_jobs_ended(entries), machine_seconds(entries)
        for job in jobs.values():
            _take_end(job, over.get(job.name), is_retried=request.retry_failed)
            _take_costs(job, used_s.get(job.name, 0.0))

    return _open(request, config, take)


def _open(
    request: RunRequest,
    config: ParamServerConfig | JobsConfig,
    take: Callable[[RunDirectory, Mapping[str, Job], Sequence[Entry]], None],
) -> OpenedJobs:
    """Open or create the directory; `take` takes over how far the ledger says that jobs are."""
    add_import_roots(request.config_path)
    run = RunDirectory(output_of(request, config).root, JOBS_FOLDER)
    claim, lock = claim_output(run.root, resolved_yaml(config), request.resume, JOBS_FOLDER)
    notes = list(claim.notes)
    try:
        scan = scan_ledger(run.ledger)
        if scan.problem is not None:
            notes.append(scan.problem)
        jobs = jobs_of(config)
        for job in jobs.values():
            job.saved = read_saved(run.job(job.name))
            if job.saved is None and any(run.job(job.name).glob("checkpoint-*")):
                notes.append(
                    f"{run.job(job.name)}: no whole checkpoint, so training starts from the beginning"
                )
        take(run, jobs, scan.entries)
        told = {entry.line.job for entry in scan.entries if isinstance(entry.line, JobSubmittedLine)}
        submitted = frozenset(item.name for each in submissions_of(run, JOBS) for item in each.items)
        ledger = Ledger(run.ledger, scan, on_progress=note_progress)
    except BaseException:
        lock.release()
        raise
    unrecorded = submitted & jobs.keys() - told
    return OpenedJobs(request, config, run, lock, ledger, jobs, unrecorded, claim, notes)


def _take_end(job: Job, end: JobDoneLine | JobFailedLine | None, *, is_retried: bool) -> None:
    """Take over how one of many jobs has ended, unless it was given more epochs or is tried again."""
    history = () if job.saved is None else job.saved.history
    job.history, job.epochs = history, history[-1].epoch if history else 0
    if isinstance(end, JobDoneLine) and (job.saved is None or stop_rule(job.config).why_over(history)):
        job.state, job.epochs, job.detail = "done", end.epochs, end.detail
    elif isinstance(end, JobFailedLine) and not is_retried:
        job.state, job.epochs, job.cause, job.detail = "failed", end.epochs, end.cause, end.detail


def _take_costs(job: Job, used_s: float) -> None:
    job.earlier_s = sum(record.seconds for record in job.history)
    job.use(0, used_s)


def _take_costs_at_checkpoint(job: Job, entries: Sequence[Entry]) -> None:
    """Take over what the only job of a run had cost at its last checkpoint."""
    lines = (entry.line for entry in reversed(entries))
    last = next((line for line in lines if isinstance(line, JobSavedLine)), None)
    if job.saved is not None:
        job.history = job.saved.history
        job.epochs = job.history[-1].epoch if job.history else 0
        if last is not None:
            job.earlier_s = last.wall_s or 0.0
            job.use(0, last.used_s or 0.0)


def how_jobs_ended(entries: Sequence[Entry]) -> Mapping[str, JobDoneLine | JobFailedLine]:
    """Return the last end of each job by the run's ledger; jobs that have been started since are missing."""
    found: dict[str, JobDoneLine | JobFailedLine] = {}
    for entry in entries:
        match entry.line:
            case JobDoneLine() | JobFailedLine():
                found[entry.line.job] = entry.line
            case JobPlacedLine(job):
                found.pop(job, None)
            case RolesAssignedLine():  # it has all ranks for itself
                found.clear()
    return found


def machine_seconds(entries: Sequence[Entry]) -> dict[str, float]:
    """Return the machine-seconds of each job; a start that was killed ends with its last line."""
    stays, last_s = JobStays(), 0.0
    for entry in entries:
        stays.take(last_s if isinstance(entry.line, RunStartedLine) else entry.unix_s, entry.line)
        last_s = entry.unix_s
    return {job: machine_s for job, (_, machine_s) in stays.cost_by_job(last_s).items()}
