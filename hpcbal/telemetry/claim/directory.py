"""Check that an output directory belongs to a run, or may be used by a new run."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hpcbal.errors import OutputError
from hpcbal.events.ensemble import StartGroup, StartRound
from hpcbal.telemetry.claim.run_lock import RunLock
from hpcbal.telemetry.claim.same_config import check_same, damaged_config, read_removed, write_removed
from hpcbal.telemetry.files.atomic_file import output_error, read_file, write_atomic
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.ledger.file import lines_of, scan_ledger
from hpcbal.telemetry.ledger.job_lines import RolesAssignedLine

# Files that batch systems create in the directory before the run starts, and hpcbal's own first files.
_HARMLESS_SUFFIXES = (".out", ".err", ".log", ".tmp", ".end", ".OU", ".ER")
_OF_PBS = re.compile(r"\.[oe]\d+")
"""It calls what a job prints `ID.OU` and `ID.ER`, or `NAME.oID` and `NAME.eID`."""
_OF_SUBMIT = re.compile(r"batch(-\d+)?\.(sh|cancel)")
_HARMLESS_NAMES = ("run.lock", "logs", "smoke", "given.yaml", "batch.jsonl")
_PROBE_BYTES = 1 << 16
_TRAINING_HAS_BEGUN = (StartRound, StartGroup, RolesAssignedLine)


@dataclass(frozen=True, slots=True)
class Claim:
    """An output directory that a start may use.

    Attributes:
        resumed: whether there is a run to resume.
        notes: sentences for people: how the config of the run has changed.
        moved: keys of paths of the data that have changed.
        record: writes a changed config into the directory. Call it once nothing else can refuse the start,
            so that a refused change leaves the run as it was.
    """

    resumed: bool
    notes: tuple[str, ...]
    moved: tuple[str, ...]
    record: Callable[[], None]


def claim_output(
    directory: str | os.PathLike[str], config_yaml: str, resume_required: bool = False, jobs: str = "dnns"
) -> tuple[Claim, RunLock]:
    """Call `check_output` while holding the directory's lock, so that a running run is never touched.

    Returns:
        The claim, and the lock, which is held.

    Raises:
        OutputError: see `check_output`; also if another run is using the directory.
    """
    root = Path(directory)
    make_output(root, resume_required)
    lock = RunLock(root)
    try:
        return check_output(root, config_yaml, resume_required, jobs), lock
    except BaseException:
        lock.release()
        raise


def make_output(root: Path, resume_required: bool = False) -> None:
    """Create an output directory, or check that a run may use it, before anything is started.

    Raises:
        OutputError: if the directory is not writable or full, or holds other files.
    """
    try:
        if not RunDirectory(root).config.exists():
            _refuse_foreign(root, resume_required)
        root.mkdir(parents=True, exist_ok=True)
        _probe(root)
    except OSError as error:
        raise output_error(root, error, "use the output directory") from error


def refuse_other_run(root: Path, config_yaml: str, jobs: str = "dnns") -> None:
    """Refuse a directory whose run could not be resumed with this config; changes nothing.

    Args:
        root: the directory; it need not be there.
        config_yaml, jobs: as for `check_output`.

    Raises:
        OutputError: if the directory belongs to another run, or cannot be read.
    """
    run = RunDirectory(root, jobs)
    try:
        existing = _text_of(run.config)
    except OSError as error:
        raise output_error(root, error, "use the output directory") from error
    if existing is not None and _has_trained(run):
        check_same(root, existing, config_yaml, read_removed(run))


def check_output(
    directory: str | os.PathLike[str], config_yaml: str, resume_required: bool = False, jobs: str = "dnns"
) -> Claim:
    """Create or check the output directory of a run.

    At the first start, the directory is created and the resolved config written into it. Once a round has
    started, the config must stay the same, except for keys that may differ (where and for how long the run
    trains, more epochs) and for jobs that are added or removed. The configs of removed jobs are kept.

    Args:
        directory: directory of the run; its parents are created too.
        config_yaml: the resolved config.
        resume_required: whether to accept only an existing run (`--resume`).
        jobs: name of the folder of the run's jobs, see `RunDirectory`.

    Raises:
        OutputError: if the directory is not writable or full, belongs to another run, or holds other files.
    """
    run = RunDirectory(Path(directory), jobs)
    try:
        existing = _text_of(run.config)
    except OSError as error:
        raise output_error(run.root, error, "use the output directory") from error
    make_output(run.root, resume_required)
    folder = run.root / run.jobs
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder}: is a file, but results go to a directory of that name; move it away")
    if existing is None or not _has_trained(run):  # at most a failed start, or profiling: it does not count
        write_atomic(run.config, config_yaml, durable=True)
        return Claim(existing is not None, (), (), lambda: None)
    removed_before = read_removed(run)
    changes = check_same(run.root, existing, config_yaml, removed_before)

    def record() -> None:
        if changes.removed:  # before config.yaml, so that a kill in between loses nothing
            write_removed(run, {**removed_before, **changes.removed})
        if existing != config_yaml:  # perhaps only by a key that is new
            write_atomic(run.config, config_yaml, durable=True)

    words = changes.in_words()
    notes = [f"resuming {words}"] if words else []
    return Claim(True, tuple(notes), changes.moved, record)


def _text_of(config: Path) -> str | None:
    """The content of a run's config; None if there is no file.

    Raises:
        OutputError: if it is not text.
    """
    try:
        return read_file(config).decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise damaged_config(config, f"damaged (no UTF-8 at byte {error.start})") from error


def _refuse_foreign(root: Path, resume_required: bool) -> None:
    """Raise if a run is required, or if `root` holds files of something else."""
    run = RunDirectory(root)
    if run.ledger.exists():
        raise damaged_config(run.config, "is missing")
    if resume_required:
        raise OutputError(f"{root}: no run to resume (no config.yaml here); start without --resume")
    if not root.exists():
        return
    foreign = sorted(
        path.name
        for path in root.iterdir()
        if path.suffix not in _HARMLESS_SUFFIXES
        and path.name not in _HARMLESS_NAMES
        and not _OF_SUBMIT.fullmatch(path.name)
        and not _OF_PBS.fullmatch(path.suffix)
    )
    if foreign:
        shown = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
        raise OutputError(
            f"{root}: not empty and not an output directory of hpcbal (it holds {shown}); "
            "choose a new or empty directory with --output"
        )


def _has_trained(run: RunDirectory) -> bool:
    """Whether something depends on the config: training has started, or there are checkpoints."""
    has_checkpoints = any((run.root / run.jobs).glob("*/checkpoint*"))
    entries = scan_ledger(run.ledger).entries
    return has_checkpoints or any(lines_of(entries, kind) for kind in _TRAINING_HAS_BEGUN)


def _probe(root: Path) -> None:
    """Raise OSError now, rather than in an hour, if nothing can be written."""
    with tempfile.TemporaryFile(dir=root, suffix=".tmp") as file:
        file.write(bytes(_PROBE_BYTES))
        file.flush()
        os.fsync(file.fileno())
