"""Open the run on rank 0: config, output directory, lock, ledger, and the state of earlier starts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcbal.checkpoint import forget_best
from hpcbal.config import EnsembleConfig, add_import_roots, resolved_yaml
from hpcbal.config.scheduling import specs_of
from hpcbal.control.states import TERMINAL
from hpcbal.runtime.handoff.end_file import note_progress
from hpcbal.runtime.handoff.launch_dir import RunRequest, output_of
from hpcbal.runtime.resuming.resume import Earlier, read_earlier
from hpcbal.telemetry import Claim, Ledger, RunDirectory, RunLock, claim_output
from hpcbal.telemetry.ledger import scan_ledger

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
    notes: Sequence[str] = ()
    """Notes for people about how the run was opened."""

    @property
    def output(self) -> Path:
        return self.run.root

    @property
    def unfinished(self) -> dict[str, bool]:
        """Whether a DNN has a checkpoint, by the names of those that are still to be trained."""
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
        scan = scan_ledger(run.ledger)
        earlier = read_earlier(
            run,
            [entry.line for entry in scan.entries],
            specs_of(config),
            problem=scan.problem,
            retry_failed=request.retry_failed,
            regroups=config.balance.regroup,
            keep=config.checkpoint.keep,
        )
        ledger = Ledger(run.ledger, scan, on_progress=note_progress)
    except BaseException:
        lock.release()
        raise
    return OpenedRun(request, config, run, lock, ledger, earlier, claim, claim.notes)
