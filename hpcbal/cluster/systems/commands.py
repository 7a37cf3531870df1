"""Run the commands of a scheduler, with an error that a user can use."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hpcbal.cluster.systems.job import OF_ARRAYS, OF_THIS_JOB, Command, Done
from hpcbal.errors import ClusterError

TIMEOUT_S = 120.0
"""A scheduler under load takes tens of seconds to answer."""

PATIENCE_S = 10.0
"""So long the number of a job is awaited when the user wants to go."""

_LOOK_S = 0.2
_NOT_SURE = re.compile(r"time(d)?[ -]?out|connection (reset|lost|closed)|no response", re.IGNORECASE)
"""In refusals of schedulers that may have taken the job: `Socket timed out on send/recv operation`."""


def run_command(command: Command, timeout_s: float = TIMEOUT_S) -> Done:
    """Run a scheduler's command other than a submission; its answer is in English.

    Args:
        command: the command.
        timeout_s: seconds that its answer may take, > 0.

    Raises:
        ClusterError: if it is not here, or does not answer.
    """
    done, has_ended = _done(command, {**os.environ, "LC_ALL": "C"}, timeout_s)
    if not has_ended:
        raise ClusterError(
            f"{command.words[0]}: no answer within {timeout_s:.0f} s; the scheduler is busy or down, try "
            "again later"
        )
    return done


def _without_job(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a new job inherits."""
    return {
        name: value
        for name, value in environ.items()
        if name not in OF_THIS_JOB and not name.startswith(OF_ARRAYS)
    }


def try_command(command: Command) -> Done:
    """Run a command that may not be here; one that cannot be started has the code 127."""
    try:
        return run_command(command)
    except ClusterError as error:
        return Done(127, "", str(error))


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to a command that submits a job.

    Attributes:
        number: identifier of the job; empty: not known.
        problem: why not; empty if it is.
        may_be_queued: whether the job may be in the queue, although its number is not known.
    """

    number: str = ""
    problem: str = ""
    may_be_queued: bool = False


def submit(
    command: Command,
    number: Callable[[str], str],
    is_interrupted: Callable[[], bool] = lambda: False,
    timeout_s: float = TIMEOUT_S,
) -> Answered:
    """Run a command that submits a job.

    Args:
        command: the command. It is in a process group of its own: Ctrl-C reaches this process only.
        number: finds the identifier in what it has printed.
        is_interrupted: whether the user wants to go; the answer is then awaited for PATIENCE_S only.
        timeout_s: seconds that the answer may take, > 0.
    """
    name, begun_s = command.words[0], time.monotonic()
    try:
        done, has_ended = _done(command, _without_job(os.environ), timeout_s, is_interrupted)
    except ClusterError as error:
        return Answered(problem=str(error))
    if found := number(done.stdout):  # also of one that waits for the end of the job, for example
        return Answered(found)
    if not has_ended:
        waited = f"no answer within {time.monotonic() - begun_s:.0f} s"
        return Answered(problem=f"{name}: {waited}", may_be_queued=True)
    if not done.code:
        problem = f"{name} has ended well, but printed no number of a job: {done.said!r}"
        return Answered(problem=problem, may_be_queued=True)
    shown = f": {done.said}" if done.said else ""
    return Answered(
        problem=f"{name} has refused, with code {done.code}{shown}",
        may_be_queued=_NOT_SURE.search(done.said) is not None,
    )


def _done(
    command: Command,
    environ: Mapping[str, str],
    timeout_s: float,
    is_interrupted: Callable[[], bool] = lambda: False,
) -> tuple[Done, bool]:
    """Run a command; return what it has printed, and whether it has ended by itself.

    Raises:
        ClusterError: if it cannot be started.
    """
    process = _started(command, environ)
    end_s, is_leaving = time.monotonic() + timeout_s, False
    try:
        while True:
            left_s = max(0.0, end_s - time.monotonic())
            with contextlib.suppress(subprocess.TimeoutExpired):  # then it is still at work
                printed, said = process.communicate(timeout=min(_LOOK_S, left_s))
                return Done(process.returncode, printed, said), True
            if is_interrupted() and not is_leaving:
                is_leaving, end_s = True, min(end_s, time.monotonic() + PATIENCE_S)
            if time.monotonic() >= end_s:
                return Done(127, *_ended(process)), False
    except BaseException:
        _ended(process)
        raise


def _started(command: Command, environ: Mapping[str, str]) -> subprocess.Popen[str]:
    name = command.words[0]
    try:
        # A file, not a pipe: the command reads it as slowly as it likes, and nobody has to feed it.
        with tempfile.TemporaryFile() as given:
            given.write((command.stdin or "").encode())
            given.seek(0)
            return subprocess.Popen(
                command.words,
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={**environ, **command.environ},
                process_group=0,
            )
    except FileNotFoundError as error:
        raise ClusterError(
            f"{name}: no such command on PATH; run hpcbal where jobs are submitted, or load the module of "
            "the batch system"
        ) from error
    except OSError as error:
        raise ClusterError(f"{name}: cannot be started: {error.strerror or error}") from error


def _ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End a command and its children, and return what they have printed."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        return process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired as error:  # a process that has left the group holds the pipe
        printed = error.stdout or b""
        return printed.decode(errors="replace") if isinstance(printed, bytes) else printed, ""


class HeldSignals:
    """Holds back the signals that end this process, while it is in a `with` block.

    Attributes:
        came: whether there was one.
    """

    def __init__(self) -> None:
        self.came = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> HeldSignals:
        if threading.current_thread() is threading.main_thread():
            for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(each) is not signal.SIG_IGN:  # as under nohup
                    self._before[each] = signal.signal(each, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _note(self, *_: object) -> None:
        self.came = True
