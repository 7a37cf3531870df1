"""Open the run of many parameter-server jobs on rank 0: directory, lock, ledger, and what is left to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hpcbal.config import JobsConfig, add_import_roots, resolved_yaml
from hpcbal.runtime.handoff.end_file import note_progress
from hpcbal.runtime.handoff.launch_dir import RunRequest, output_of
from hpcbal.runtime.handoff.submissions import submitted_names
from hpcbal.runtime.paramserver.checkpoint import SavedJob, read_saved
from hpcbal.runtime.paramserver.opening import JOBS, stop_rule
from hpcbal.telemetry import Claim, Ledger, RunDirectory, RunLock, claim_output
from hpcbal.telemetry.ledger import (
    Entry,
    JobDoneLine,
    JobFailedLine,
    JobStays,
    JobSubmittedLine,
    RunStartedLine,
    scan_ledger,
)


@dataclass(frozen=True, slots=True)
class OpenedJobs:
    """A run whose directory this process holds until `close`.

    Attributes:
        request: the request of this start.
        config: the configuration.
        run: paths of the run's files.
        lock: the lock of the directory.
        ledger: the open ledger.
        saved: the last checkpoint of each job that has one.
        over: how each job that is over has ended, in an earlier start.
        unrecorded: submitted jobs that the ledger does not mention yet.
        claim: whether the directory held this run before, and how its config has changed.
        notes: what people should know about how it was opened.
        used_s: machine-seconds of each job in earlier starts.
    """

    request: RunRequest
    config: JobsConfig
    run: RunDirectory
    lock: RunLock
    ledger: Ledger
    saved: Mapping[str, SavedJob]
    over: Mapping[str, JobDoneLine | JobFailedLine]
    unrecorded: frozenset[str]
    claim: Claim
    notes: Sequence[str] = ()
    used_s: Mapping[str, float] = field(default_factory=dict)

    def close(self) -> None:
        """Give the directory back."""
        self.ledger.close()
        self.lock.release()


def open_jobs(request: RunRequest, config: JobsConfig) -> OpenedJobs:
    """Open or create the run's directory.

    Raises:
        OutputError: if the directory is not writable, full, locked, not made by hpcbal, or another run's.
        CheckpointError: if a checkpoint cannot be used.
    """
    add_import_roots(request.config_path)
    run = RunDirectory(output_of(request, config).root, JOBS)
    claim, lock = claim_output(run.root, resolved_yaml(config), request.resume, JOBS)
    notes = list(claim.notes)
    try:
        scan = scan_ledger(run.ledger)
        if scan.problem is not None:
            notes.append(scan.problem)
        found = {job.name: read_saved(run.job(job.name)) for job in config.jobs}
        saved = {name: each for name, each in found.items() if each is not None}
        over = how_jobs_ended(scan.entries)
        for job in config.jobs:
            line = over.get(job.name)
            is_done = isinstance(line, JobDoneLine) and job.name in saved
            if is_done and stop_rule(job).why_over(saved[job.name].history) is None:
                del over[job.name]  # it was given more epochs
            elif isinstance(line, JobFailedLine) and request.retry_failed:
                del over[job.name]
        told = {entry.line.job for entry in scan.entries if isinstance(entry.line, JobSubmittedLine)}
        unrecorded = submitted_names(run) & {job.name for job in config.jobs} - told
        ledger = Ledger(run.ledger, scan, on_progress=note_progress)
    except BaseException:
        lock.release()
        raise
    used_s = machine_seconds(scan.entries)
    return OpenedJobs(request, config, run, lock, ledger, saved, over, unrecorded, claim, notes, used_s)


def how_jobs_ended(entries: Sequence[Entry]) -> dict[str, JobDoneLine | JobFailedLine]:
    """The last end of each job by the run's ledger; jobs that have not ended are missing."""
    return {
        entry.line.job: entry.line for entry in entries if isinstance(entry.line, JobDoneLine | JobFailedLine)
    }


def machine_seconds(entries: Sequence[Entry]) -> dict[str, float]:
    """Machine-seconds of each job by the run's ledger; a start that was killed ends with its last line."""
    stays, last_s = JobStays(), 0.0
    for entry in entries:
        stays.take(last_s if isinstance(entry.line, RunStartedLine) else entry.unix_s, entry.line)
        last_s = entry.unix_s
    stays.close(last_s)
    return {job: machine_s for job, (_, machine_s) in stays.cost_by_job().items()}
