"""Open the directory of a run, and check that it was trained on the same data."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcbal.checkpoint.best import forget_best
from hpcbal.config import EnsembleConfig, add_import_roots, resolved_yaml
from hpcbal.config.listed import DNNS
from hpcbal.config.scheduling import specs_of
from hpcbal.config.submission import names_of
from hpcbal.control.states import TERMINAL
from hpcbal.data.content import shortened
from hpcbal.data.labels import in_words
from hpcbal.errors import DataError
from hpcbal.runtime.handoff.end_file import note_progress
from hpcbal.runtime.handoff.launch_dir import RunRequest, output_of
from hpcbal.runtime.handoff.submissions import StopRequests, SubmissionWatch, submissions_by_file
from hpcbal.runtime.resuming.resume import Earlier, read_earlier
from hpcbal.telemetry.claim.directory import Claim, claim_output
from hpcbal.telemetry.claim.run_lock import RunLock
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.ledger.file import Ledger, scan_ledger

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """A run whose directory this process holds until `close`."""

    request: RunRequest
    config: EnsembleConfig
    run: RunDirectory
    lock: RunLock
    ledger: Ledger
    earlier: Earlier
    claim: Claim
    stop_requests: StopRequests
    joining: SubmissionWatch
    import_roots: Sequence[str] = ()
    """Directories with modules of DNNs that have joined the run, in earlier starts too."""
    joined: Mapping[str, str] = field(default_factory=dict)
    """These DNNs: by name, the file in the run's directory that lists it."""
    notes: Sequence[str] = ()
    """Notes for people about how the run was opened."""

    @property
    def output(self) -> Path:
        return self.run.root

    @property
    def unfinished(self) -> dict[str, bool]:
        """The DNNs that are still to be trained; by name, whether one has a checkpoint."""
        dnns = self.earlier.resume.dnns
        return {name: dnn.position is not None for name, dnn in dnns.items() if dnn.state not in TERMINAL}

    def accept(self) -> None:
        """Make the changes of the config, which nothing refuses any more.

        Raises:
            OutputError, CheckpointError: if a file cannot be written or removed.
        """
        self.claim.record()
        if self.config.checkpoint.keep == "last":
            for name, saved in self.earlier.saved.items():
                if not saved.best:
                    forget_best(self.run.job(name))

    def close(self) -> None:
        self.ledger.close()
        self.lock.release()


def open_run(request: RunRequest, config: EnsembleConfig) -> OpenedRun:
    """Open or create the run's directory.

    Raises:
        OutputError: if the directory is not writable, full, locked, not made by hpcbal, or another run's.
    """
    add_import_roots(request.config_path)
    run = output_of(request, config)
    claim, lock = claim_output(run.root, resolved_yaml(config), request.resume)
    try:
        scan, stop_requests = scan_ledger(run.ledger), StopRequests(run)
        earlier = read_earlier(
            run,
            [entry.line for entry in scan.entries],
            specs_of(config),
            problem=scan.problem,
            retry_failed=request.retry_failed,
            regroups=config.balance.regroup,
            keep=config.checkpoint.keep,
            asked_to_stop=stop_requests.take(),
        )
        submissions = submissions_by_file(run, DNNS)
        ledger = Ledger(run.ledger, scan, on_progress=note_progress)
    except BaseException:
        lock.release()
        raise
    roots = tuple(dict.fromkeys(root for each in submissions.values() for root in each.import_roots))
    joining = SubmissionWatch(run, DNNS, names_of(config))
    return OpenedRun(
        request,
        config,
        run,
        lock,
        ledger,
        earlier,
        claim,
        stop_requests,
        joining,
        roots,
        {dnn.name: file for file, each in submissions.items() for dnn in each.items},
        claim.notes,
    )


def check_fingerprint(
    run: RunDirectory,
    earlier: Earlier,
    fingerprint: str,
    moved: Sequence[str] = (),
    *,
    is_identified: bool = True,
    class_names: Sequence[str] = (),
) -> str:
    """Refuse to resume with other data.

    Args:
        moved: keys of paths of the data that have changed.
        is_identified: whether the dataset has a fingerprint of its own.
        class_names: of the data, by number; empty if these have none.

    Returns: a sentence about data that have moved; empty if they have not.

    Raises:
        DataError: if a checkpoint was made with data or preprocessing of another fingerprint, or it is not
            known whether it was.
    """
    if earlier.fingerprints and moved and not is_identified:
        raise DataError(
            f"{run.root}: {', '.join(moved)}: changed, but the dataset has no attribute 'fingerprint' that "
            "shows whether these are the data of the run; undo the change, or choose another output.dir"
        )
    for dnn_id, trained_on in earlier.fingerprints.items():
        names = earlier.class_names.get(dnn_id, ())
        if names and class_names and names != tuple(class_names):
            raise DataError(
                f"{run.job(dnn_id)}: the checkpoint was trained on the classes {in_words(names)}, but the "
                f"data have {in_words(class_names)} now (in this order); restore the dataset, or choose "
                "another output.dir"
            )
        if trained_on != fingerprint:
            before, now = shortened([trained_on, fingerprint])
            raise DataError(
                f"{run.job(dnn_id)}: the checkpoint was trained on other data or preprocessing (fingerprint "
                f"{before}, now {now}); restore the dataset, in which only samples that the run has named as "
                "broken may have changed (and with data.lookahead the largest "
                "batch_size, by which the order is cut), or choose another output.dir"
            )
    if not earlier.fingerprints or not moved:
        return ""
    return f"{', '.join(moved)}: changed, but the fingerprint of the data is the same"
