"""Make sure that a run and its output directory belong together."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from hpcbal.errors import OutputError
from hpcbal.telemetry.claim.run_lock import RunLock
from hpcbal.telemetry.claim.same_config import check_same
from hpcbal.telemetry.files.atomic_file import output_error, remove_quietly, write_atomic
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.ledger import RoundStartedLine, lines_of, read_ledger

log = logging.getLogger(__name__)

# What batch systems put into the directory before the run starts, and our own first files.
_HARMLESS_SUFFIXES = (".out", ".err", ".log", ".tmp")
_HARMLESS_NAMES = ("run.lock", "logs")
_PROBE_BYTES = 1 << 16


def claim_output(
    directory: str | os.PathLike[str], config_yaml: str, resume_required: bool = False
) -> tuple[bool, RunLock]:
    """`prepare_output` under the directory's lock, so that nothing of a living run is touched.

    Returns:
        Whether there is a run to go on with, and the lock, held.

    Raises:
        OutputError: as `prepare_output`, or if another run is using the directory.
    """
    root = Path(directory)
    try:
        if not RunDirectory(root).config.exists():
            _refuse_foreign(root, resume_required)
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise output_error(root, error, "use the output directory") from error
    lock = RunLock(root)
    try:
        return prepare_output(root, config_yaml, resume_required), lock
    except BaseException:
        lock.release()
        raise


def prepare_output(
    directory: str | os.PathLike[str], config_yaml: str, resume_required: bool = False
) -> bool:
    """Make or check the output directory of a run.

    At the first start the directory is made and the resolved config written into it. Once a round was
    started, the config must be the same but for what may differ (where it runs, for how long, more epochs).

    Args:
        directory: of the run; parents are made too.
        config_yaml: the resolved config.
        resume_required: only go on with an existing run (`--resume`).

    Returns:
        Whether there is a run to go on with.

    Raises:
        OutputError: if the directory is unwritable or full, another run's, or something else's.
    """
    run = RunDirectory(Path(directory))
    try:
        existing = run.config.read_text(encoding="utf-8") if run.config.exists() else None
        if existing is None:
            _refuse_foreign(run.root, resume_required)
            run.root.mkdir(parents=True, exist_ok=True)
        _probe(run.root)
    except OSError as error:
        raise output_error(run.root, error, "use the output directory") from error
    if existing is None:
        write_atomic(run.config, config_yaml, durable=True)
        return False
    if not _has_trained(run):  # a start that failed, or a profile: nothing depends on the config yet
        write_atomic(run.config, config_yaml, durable=True)
        return True
    changed = check_same(run.root, existing, config_yaml)
    if changed:
        log.info("%s: going on with changed %s", run.root, ", ".join(changed))
        write_atomic(run.config, config_yaml, durable=True)
    return True


def _refuse_foreign(root: Path, resume_required: bool) -> None:
    """Raise if `root` holds no run but other things, or if a run is required."""
    if resume_required:
        raise OutputError(f"{root}: no run to resume here (no config.yaml); start without --resume")
    if not root.exists():
        return
    foreign = sorted(
        path.name
        for path in root.iterdir()
        if path.suffix not in _HARMLESS_SUFFIXES and path.name not in _HARMLESS_NAMES
    )
    if foreign:
        shown = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
        raise OutputError(
            f"{root}: not empty and not a run of hpcbal (it holds {shown}); "
            "choose a new or empty directory with --output"
        )


def _has_trained(run: RunDirectory) -> bool:
    return bool(lines_of(read_ledger(run.ledger), RoundStartedLine))


def _probe(root: Path) -> None:
    """Raise OSError now, not in an hour, if nothing can be written."""
    probe = root / "probe.tmp"
    try:
        with open(probe, "wb") as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    finally:
        remove_quietly(probe)
