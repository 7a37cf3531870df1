"""The directory of a start, and the files in it: the request, and how the run has ended.

It holds the start file (`start_file`) and the files of its mpirun. `hpcbal run`, its mpirun and the ranks
lock the start file. The kernel releases a lock when its process ends for any reason, so no process id has to
be trusted.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from hpcbal import env
from hpcbal.config import AnyConfig, EnsembleConfig, RunConfig, load_config, load_ensemble
from hpcbal.errors import OutputError
from hpcbal.kinds import KINDS
from hpcbal.processes import say
from hpcbal.runtime.handoff.start_file import NAME, StartFile, facts_in
from hpcbal.telemetry.files.atomic_file import inodes, output_error
from hpcbal.telemetry.files.run_directory import RunDirectory

SMOKE_STEPS = 20
"""Steps of the largest batch size in a trial, training and validation together."""
SMOKE_PROFILING = {"max_batches": 4, "timed_batches": 2}


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One start of `hpcbal run` or `hpcbal profile`.

    Attributes:
        config_path: the YAML file.
        overrides: `--set` arguments, `a.b=c`.
        output: directory of the run; None means `output.dir` of the config.
        resume: whether to refuse to start a new run.
        retry_failed: whether DNNs that failed in an earlier start get another try.
        profile_only: whether to measure the rates and stop.
        smoke: whether to train each DNN for one small epoch, in a new directory below the run's.
        num_operation_steps: steps of one worker of a parameter-server job to record, and stop; None: train.
        started_s: when this start began, in seconds since the Unix epoch.
        log_level: level of the rank logs, the name of a level of `logging`, such as DEBUG.
    """

    config_path: Path
    overrides: tuple[str, ...] = ()
    output: Path | None = None
    resume: bool = False
    retry_failed: bool = False
    profile_only: bool = False
    smoke: bool = False
    num_operation_steps: int | None = None
    log_level: str = "INFO"
    started_s: float = field(default_factory=time.time)


def load_requested(request: RunRequest, *, is_rank: bool) -> AnyConfig:
    """Load the configuration of a start; warn once, on stderr, about keys that have no effect.

    Args:
        is_rank: whether this is rank 0; it does not warn if `hpcbal run` has started it and warned already.

    Raises:
        ConfigError: if the configuration is wrong, or a job that was submitted to the run.
        InputError: if operations are to be recorded of something else than an `async` job.
        OutputError: if submitted jobs cannot be read.
    """

    def warn(text: str) -> None:
        say(f"warning: {text}")

    has_warned = is_rank and env.read("HPCBAL_LAUNCHED") is not None
    load = load_ensemble if request.profile_only or request.smoke else load_config
    config = load(
        request.config_path, request.overrides, check_imports=True, warn=None if has_warned else warn
    )
    return cast(AnyConfig, KINDS[config.kind].runs.requested(request, config))


def small(config: EnsembleConfig) -> EnsembleConfig:
    """Return the configuration of a trial: one epoch of each DNN on few samples."""
    most = SMOKE_STEPS * max(dnn.batch_size for dnn in config.dnns)
    data = config.data.model_copy(update={"max_samples": min(most, config.data.max_samples or most)})
    once = {"max_epochs": 1, "patience": None, "target": None}
    profiling = config.schedule.profiling.model_copy(update=SMOKE_PROFILING)
    return config.model_copy(
        update={
            "data": data,
            "dnns": tuple(
                dnn.model_copy(update={"stop": dnn.stop.model_copy(update=once)}) for dnn in config.dnns
            ),
            "schedule": config.schedule.model_copy(update={"profiling": profiling}),
            "prune": config.prune.model_copy(update={"rule": "none"}),
            "searches": (),
        }
    )


def output_of(request: RunRequest, config: RunConfig) -> RunDirectory:
    """The run's directory: `--output` takes precedence over `output.dir`; a trial gets a new one below."""
    root = Path(request.output if request.output is not None else config.output.dir)
    if request.smoke:
        root = root / "smoke" / time.strftime("%Y%m%d-%H%M%S", time.localtime(request.started_s))
    return RunDirectory(root)


PREFIX = "hpcbal-"
MAX_FIRST_LINE_BYTES = 4096
SHARED_MEMORY = "/dev/shm"
_LEAST_INODES, _MOST_INODES = 8, 20
"""Inodes of a start besides those of its ranks: three ranks used 19 for temporary files, and 8 in memory."""


@contextlib.contextmanager
def launch_directory() -> Iterator[tuple[Path, int]]:
    """A new directory in the system's folder for temporary files; removed afterwards.

    Yields:
        The directory, and a descriptor that locks it, also in a process that inherits it. If files cannot be
        locked, `sweep` does not touch the directory.

    Raises:
        OutputError: if nothing can be written there.
    """
    try:
        made = tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
    except OSError as error:
        raise OutputError(
            f"cannot create a directory for temporary files: {error}; set TMPDIR to a writable folder"
        ) from error
    with made as name:
        path = Path(name) / NAME
        aside = path.with_name(f"{NAME}.tmp")
        try:
            descriptor = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise output_error(path, error) from error
        try:
            locked_on = socket.gethostname() if _lock(descriptor, fcntl.LOCK_SH) else None
            first = {"starter_pid": os.getpid(), "locked_on": locked_on}
            try:
                line = f"{json.dumps(first)}\n".encode()
                if os.write(descriptor, line) != len(line):
                    raise OutputError(f"{path}: cannot write: the file system is full; free space")
                os.rename(aside, path)  # visible only once it is locked
            except OSError as error:
                raise output_error(path, error) from error
            yield Path(name), descriptor
        finally:
            os.close(descriptor)


def shortage_of_inodes(ranks: int) -> tuple[bool, str] | None:
    """Find a file system in which the files of MPI may not have room, or certainly have not.

    Open MPI makes a file for each rank in /dev/shm, besides windows, and some directories and sockets in the
    system's folder for temporary files; if it cannot, it ends with a number.

    Args:
        ranks: how many ranks are to be started on this machine.

    Returns:
        Whether the start must fail, and a sentence; None if there is room.
    """
    for folder, least, remedy in (
        (tempfile.gettempdir(), _LEAST_INODES, "remove files, or set TMPDIR to another folder"),
        (SHARED_MEMORY, ranks, "remove files of jobs that are over"),
    ):
        found, wanted = inodes(folder), 4 * ranks + _MOST_INODES
        if found is not None and found[0] < wanted:
            free, total = found
            return free < least, (
                f"{folder}: no room for the files of MPI: {free} of {total} inodes are free, so few "
                f"files can still be made there, and {ranks} ranks may need {wanted}; {remedy}"
            )
    return None


def hold(start: StartFile) -> None:
    """Lock the launch directory of a start until this process ends, if the directory still exists."""
    if start.path is not None:
        with contextlib.suppress(OSError):  # it cannot be locked, or is gone
            _lock(os.open(start.path, os.O_RDONLY), fcntl.LOCK_SH)


def sweep() -> None:
    """Remove this user's launch directories that no process on this host uses any more.

    Skips symbolic links, directories that others own or may write to, directories that cannot be locked, and
    directories of other hosts, because hosts that share a folder may not see each other's locks.
    """
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        found = [Path(entry.path) for entry in entries if entry.name.startswith(PREFIX)]
        for directory in found:
            with contextlib.suppress(OSError):  # another start may be removing it too
                _remove_unless_held(directory)


def _remove_unless_held(directory: Path) -> None:
    status = directory.lstat()
    is_private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o022
    if not is_private or status.st_uid != os.geteuid():
        return
    descriptor = os.open(directory / NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        is_ours = facts_in(os.read(descriptor, MAX_FIRST_LINE_BYTES)).locked_on == socket.gethostname()
        if is_ours and _lock(descriptor, fcntl.LOCK_EX):
            shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, kind: int) -> bool:
    """Lock a file; False if another process has locked it, or this file system has no locks."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
