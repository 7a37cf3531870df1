"""Read a job's newest whole checkpoint, or parts of it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import h5py
from numpy.typing import NDArray

from hpcbal.checkpoint.state import OtherVersionError, TrainingState, progress_from_json, verify
from hpcbal.checkpoint.writer import (
    ARRAYS,
    ASIDE,
    CURRENT,
    DAMAGED,
    PREVIOUS,
    PROGRESS,
    read_array,
    set_aside,
)
from hpcbal.errors import CheckpointError


def read_groups(path: Path, groups: Iterable[str]) -> dict[str, dict[str, NDArray[Any]]]:
    """Read the arrays below some paths, such as `parameters/3`.

    Args:
        path: a file of `write_checkpoint`.
        groups: beginnings of the names of arrays, up to a slash.

    Returns:
        By group, its arrays by the rest of their names; they can be changed.

    Raises:
        CheckpointError: if the file is damaged, or lacks a group; the message does not name the file.
        OSError: if it is missing or cannot be read.
    """
    verify(path)
    found: dict[str, dict[str, NDArray[Any]]] = {}
    with h5py.File(path, "r", locking=False) as root:
        for name in groups:
            group = root.get(f"{ARRAYS}/{name}")
            if not isinstance(group, h5py.Group):
                raise CheckpointError(f"it lacks {name}")
            found[name] = _datasets(group)
    return found


def _datasets(group: h5py.Group) -> dict[str, NDArray[Any]]:
    """All arrays below a group, by path."""
    found: dict[str, NDArray[Any]] = {}

    def take(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = read_array(item)

    group.visititems(take)
    return found


def read_checkpoint(directory: str | os.PathLike[str]) -> tuple[TrainingState | None, list[str]]:
    """Read the newest whole checkpoint in `directory`.

    Returns:
        The state, or None if there is no whole checkpoint; and one warning for people per damaged, missing or
        left-over file, which says what is used instead.

    Raises:
        CheckpointError: if a file exists but cannot be opened (permissions, I/O errors), or another version
            wrote it: training would otherwise repeat what is already trained.
    """
    return _read_newest(Path(directory), with_arrays=True)


def read_progress(directory: str | os.PathLike[str]) -> tuple[TrainingState | None, list[str]]:
    """Read the newest checkpoint without its arrays, in a fraction of the time.

    File, warnings and checksum verification (several GB/s) match `read_checkpoint`, so the two always agree.
    """
    return _read_newest(Path(directory), with_arrays=False)


def recover_progress(directory: str | os.PathLike[str]) -> tuple[TrainingState | None, list[str]]:
    """As `read_progress`, for the only process that uses the directory: damaged files are kept.

    A damaged file gets a name that no later save overwrites; its warning says which. So people may still look
    at it, or take a whole copy from a backup.
    """
    return _read_newest(Path(directory), with_arrays=False, keeps_damaged=True)


def _read_newest(
    folder: Path, with_arrays: bool, keeps_damaged: bool = False
) -> tuple[TrainingState | None, list[str]]:
    warnings = []
    problems: dict[str, str | None] = {}  # by file name; None: the file does not exist
    state = None
    for name in (CURRENT, PREVIOUS):
        try:
            state = read_file(folder / name, with_arrays)
        except FileNotFoundError:
            problems[name] = None
        except OtherVersionError as error:
            raise CheckpointError(
                f"{folder / name}: {error}; continue with the hpcbal that wrote it, "
                "or remove it to train from the beginning"
            ) from error
        except CheckpointError as error:
            problems[name] = str(error)
        except NotADirectoryError:
            raise CheckpointError(
                f"{folder}: is a file, but checkpoints go to a directory of that name; move it away"
            ) from None
        except OSError as error:
            raise CheckpointError(
                f"{folder / name}: cannot read the checkpoint: {error.strerror or error}; "
                "restore access to it, or remove it to train from the beginning"
            ) from error
        else:
            break
    was_kept = (folder / DAMAGED.format("")).exists()  # why there is no newest checkpoint
    used = _describe_choice(folder, state, problems)
    for name, problem in problems.items():
        if problem is not None:
            kept = f"kept as {_keep(folder / name)}; " if keeps_damaged else ""
            warnings.append(f"{folder / name}: {problem}; {kept}{used}")
        elif name == CURRENT and (state is not None or problems.get(PREVIOUS)) and not was_kept:
            warnings.append(f"{folder / name}: is missing (a save was interrupted); {used}")
    if (folder / ASIDE).exists():
        warnings.append(f"{folder / ASIDE}: left behind by an interrupted save, ignored; {used}")
    return state, warnings


def _keep(damaged: Path) -> str:
    """The name under which a damaged file is kept."""
    try:
        return set_aside(damaged).name
    except OSError as error:
        raise CheckpointError(
            f"{damaged}: it is damaged and cannot be renamed ({error.strerror or error}); restore access to "
            "its directory, or remove it"
        ) from error


def _describe_choice(folder: Path, state: TrainingState | None, problems: dict[str, str | None]) -> str:
    """Say which file is used, for the end of a warning."""
    if state is None:
        return "there is no whole checkpoint, so training starts from the beginning"
    name = PREVIOUS if CURRENT in problems else CURRENT
    return f"using {folder / name} (epoch {state.epoch})"


def read_file(path: Path, with_arrays: bool) -> TrainingState:
    """Read one whole file.

    Raises:
        CheckpointError: if it is damaged; the message gives the reason, without the path.
        OSError: if it is missing or cannot be read.
    """
    verify(path)
    arrays: dict[str, NDArray[Any]] = {}
    # No lock: a file never changes under its name, and many parallel file systems do not support locks.
    with h5py.File(path, "r", locking=False) as root:
        try:
            text = root[PROGRESS][()].decode()
            if with_arrays and ARRAYS in root:
                arrays = _datasets(root[ARRAYS])
        except (KeyError, AttributeError, UnicodeDecodeError) as error:
            raise CheckpointError(f"it lacks parts of a checkpoint ({error!r})") from error
    return progress_from_json(text, arrays)
