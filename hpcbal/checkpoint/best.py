"""Keep the weights of a job's best epoch in a file of their own, beside its checkpoint.

`best.h5` holds the weights of the best epoch so far. It may be ahead of the checkpoint: the best epoch is
saved when it ends, a checkpoint only now and then. So the first best epoch after a checkpoint renames the
file to `best.previous.h5`: after a kill, training continues from the checkpoint, and `recover_best` goes back
to the best epoch of what the checkpoint has seen. Both files are made aside, flushed, then renamed, and
sealed like checkpoints. If the best epoch is also the last one, `best.h5` is a hard link to the checkpoint.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from hpcbal.checkpoint.reader import read_file
from hpcbal.checkpoint.state import TrainingState
from hpcbal.checkpoint.writer import CURRENT, PREVIOUS, set_aside, write_sealed
from hpcbal.errors import CheckpointError
from hpcbal.telemetry.files.atomic_file import (
    create_new,
    make_inside,
    output_error,
    remove_quietly,
    sync_directory,
)

BEST = "best.h5"
BEST_BEFORE = "best.previous.h5"
BEST_ASIDE = "best.h5.tmp"
BEST_UNUSED = "best.unused{}.h5"
"""Names under which whole best weights are kept that do not belong to the job's checkpoint."""
WEIGHTS = "weights/"
"""Prefix of the arrays of a checkpoint that are weights."""
BEST_BY = "best_by"
"""In the `meta` of a file that holds a best epoch: the metric that says so."""
BEST_EPOCH = "best_epoch"
"""In the `meta` of a file of a DNN that keeps its best weights: its best epoch so far; 0: none."""
CLASSES = "class_names"
"""In the `meta` of a file of a DNN: names of the classes of its data, if these have names."""
EPOCH_FACTS = "epoch_facts"
"""In the `meta` of a file of a DNN: the measurements of its last epoch, for a ledger that lacks it."""
OF_OTHER_TRAINING = "belongs to another training than the checkpoint (was it copied from another run?)"
"""The reason in warnings about a whole file of best weights whose epochs are not those of the checkpoint."""
ONLY_BEST = "only_best"
"""In the `meta` of the checkpoint of a job that has ended and keeps only its best weights: true."""


def write_best(directory: str | os.PathLike[str], state: TrainingState, *, is_ahead: bool) -> None:
    """Write the weights in `state`, without the optimizer, as the best ones.

    Args:
        directory: created if missing; only one writer at a time.
        state: after the best epoch, which is the last one of its history.
        is_ahead: whether the best weights on disk are newer than the checkpoint; they are replaced then, and
            kept as the previous ones otherwise.

    Raises:
        OutputError: if the directory is not writable or full; the old files stay.
        CheckpointError: if an array's name or type is not allowed in a checkpoint.
    """
    folder = Path(directory)
    weights = {name: array for name, array in state.arrays.items() if name.startswith(WEIGHTS)}
    try:
        make_inside(folder)
        with create_new(folder / BEST_ASIDE) as file:
            write_sealed(file, dataclasses.replace(state, arrays=weights))
            file.flush()
            os.fsync(file.fileno())
        _put_in_place(folder, is_ahead)
    except OSError as error:
        remove_quietly(folder / BEST_ASIDE)
        raise output_error(folder / BEST, error, f"write the best weights of {state.name!r}") from error
    except BaseException:
        remove_quietly(folder / BEST_ASIDE)
        raise


def share_best(directory: str | os.PathLike[str], state: TrainingState, *, is_ahead: bool) -> None:
    """As `write_best`, for a state that is the current checkpoint; links to it if possible."""
    folder = Path(directory)
    try:
        remove_quietly(folder / BEST_ASIDE)
        os.link(folder / CURRENT, folder / BEST_ASIDE)
    except OSError:  # a file system without hard links, or at their limit
        write_best(folder, state, is_ahead=is_ahead)
        return
    try:
        _put_in_place(folder, is_ahead)
    except OSError as error:
        remove_quietly(folder / BEST_ASIDE)
        raise output_error(folder / BEST, error, f"keep the best weights of {state.name!r}") from error


def _put_in_place(folder: Path, is_ahead: bool) -> None:
    if not is_ahead and (folder / BEST).exists():
        os.replace(folder / BEST, folder / BEST_BEFORE)
    os.replace(folder / BEST_ASIDE, folder / BEST)
    sync_directory(folder)


def read_best(
    directory: str | os.PathLike[str], *, with_arrays: bool, checkpoint: TrainingState | None = None
) -> tuple[TrainingState | None, Path, list[str]]:
    """Read the newest whole file of best weights.

    Args:
        checkpoint: progress in the checkpoint; weights of another training are not used. None: any are.

    Returns:
        The state, whose last epoch is the best one, or None if there is none; its path; and one warning for
        people per file that is damaged or not used.

    Raises:
        CheckpointError: if a file exists but cannot be opened.
    """
    folder, warnings = Path(directory), []
    for name in (BEST, BEST_BEFORE):
        try:
            state = read_file(folder / name, with_arrays)
        except FileNotFoundError:
            continue
        except CheckpointError as error:
            warnings.append(f"{folder / name}: {error}; it is not used")
            continue
        except OSError as error:
            raise _unreadable(folder / name, error) from error
        if checkpoint is None or is_part_of(state, checkpoint) or is_part_of(checkpoint, state):
            return state, folder / name, warnings
        warnings.append(f"{folder / name}: {OF_OTHER_TRAINING}; it is not used")
    return None, folder / BEST, warnings


def holds_best(directory: str | os.PathLike[str], state: TrainingState, epoch: float) -> bool:
    """Whether `best.h5` is whole and holds the weights that `state` had after this epoch.

    Raises:
        CheckpointError: if a file exists but cannot be opened.
    """
    found, path, _ = read_best(directory, with_arrays=False)
    return found is not None and path.name == BEST and found.epoch == epoch and is_part_of(found, state)


def recover_best(
    directory: str | os.PathLike[str], state: TrainingState | None, epoch: int, *, is_lost: bool = False
) -> tuple[TrainingState | None, list[str]]:
    """Make `best.h5` the best epoch of what the checkpoint has seen, or else the newest earlier best epoch.

    Weights of epochs that training repeats, because they came after the checkpoint, are removed. Whole files
    of another training, whose epochs are not those of the checkpoint, are set aside. Only for the one process
    that uses the directory.

    Args:
        state: the checkpoint's progress; None if there is no checkpoint.
        epoch: the best epoch of its history; 0 if there is none, which removes the best weights.
        is_lost: whether a newer checkpoint is lost: the best weights are not removed, but set aside.

    Returns:
        The progress of the best weights, None if they are not kept; and warnings for people.

    Raises:
        CheckpointError: if a file exists but cannot be opened, renamed or removed.
    """
    folder = Path(directory)
    if state is None or epoch == 0:
        return None, _give_up(folder, is_lost)
    warnings: list[str] = []
    earlier: dict[str, TrainingState] = {}
    sources = [BEST, BEST_BEFORE]
    if state.epoch == epoch:  # killed between the checkpoint and the link to it
        sources.append(CURRENT if (folder / CURRENT).exists() else PREVIOUS)
    for name in sources:
        try:
            found = read_file(folder / name, with_arrays=False)
            if BEST_BY in found.meta and is_part_of(found, state):
                if found.epoch == epoch:
                    _adopt(folder, name)
                    return found, warnings
                earlier[name] = found
            elif name in (BEST, BEST_BEFORE) and not is_part_of(state, found):
                warnings.append(_set_aside(folder / name, found, OF_OTHER_TRAINING))
        except FileNotFoundError:
            continue
        except CheckpointError as error:
            warnings.append(f"{folder / name}: {error}; it is not used")
        except OSError as error:
            raise _unreadable(folder / name, error) from error
    if not earlier:
        return None, [*warnings, *_give_up(folder, is_lost)]
    name, found = max(earlier.items(), key=lambda item: item[1].epoch)
    _adopt(folder, name)
    lost = (
        f"the best weights, of epoch {epoch}, are lost; those of the best epoch before, {found.epoch}, are "
        "kept instead"
    )
    return found, ["; ".join([*warnings, lost]) if warnings else f"{folder / BEST}: {lost}"]


def _give_up(folder: Path, is_lost: bool) -> list[str]:
    """Remove the best weights; if they may be the last whole ones, set them aside and return a warning."""
    state = path = None
    if is_lost:
        state, path, _ = read_best(folder, with_arrays=False)
    if state is None or path is None:
        forget_best(folder)
        return []
    warning = _set_aside(path, state, "belongs to no checkpoint that is left")
    forget_best(folder)
    return [warning]


def _set_aside(path: Path, state: TrainingState, why: str) -> str:
    """Keep a whole file of best weights under a name that nothing overwrites; return the warning."""
    try:
        kept = set_aside(path, BEST_UNUSED)
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be renamed ({error.strerror or error}); restore access to its directory"
        ) from error
    return f"{path}: {why}; its weights, of epoch {state.epoch}, are kept as {kept.name}"


def forget_best(directory: str | os.PathLike[str]) -> None:
    """Remove the best weights.

    Raises:
        CheckpointError: if a file cannot be removed.
    """
    for name in (BEST, BEST_BEFORE, BEST_ASIDE):
        path = Path(directory) / name
        try:
            path.unlink(missing_ok=True)
        except NotADirectoryError:
            return
        except OSError as error:
            raise CheckpointError(
                f"{path}: cannot be removed ({error.strerror or error}); restore access to its directory"
            ) from error


def _adopt(folder: Path, name: str) -> None:
    """Give the file the name of the best weights; the file of an older best epoch is of no use any more."""
    if name == BEST:
        return
    if name == BEST_BEFORE:
        os.replace(folder / name, folder / BEST)
        return
    remove_quietly(folder / BEST_ASIDE)
    try:
        os.link(folder / name, folder / BEST_ASIDE)
    except OSError:
        write_best(folder, read_file(folder / name, with_arrays=True), is_ahead=False)
    else:
        _put_in_place(folder, is_ahead=False)


def is_part_of(earlier: TrainingState, later: TrainingState) -> bool:
    """Whether `later` has gone on from `earlier`, or is the same.

    The histories say so: they hold how long each epoch took, which no other training repeats. They are
    compared as text, because a NaN equals nothing.
    """
    is_same = earlier.name == later.name and 0 < earlier.epoch <= later.epoch
    return is_same and repr(earlier.history) == repr(later.history[: earlier.epoch])


def _unreadable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"{path}: cannot read the best weights: {error.strerror or error}; restore access to the file, or "
        "remove it"
    )
