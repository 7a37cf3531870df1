"""Ask a question in a process of its own with a time limit, and end a rank whose MPI hangs."""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

POLL_S = 0.02
LAST_WORDS_S = 1.0
"""An interrupted child may end what it has started, as mpirun does its ranks."""

_interrupted = threading.Event()


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a child.

    Attributes:
        facts: the JSON object in the last line that it has printed; None if there is none.
        fault: why there is none, in words; empty if there is one.
    """

    facts: Mapping[str, Any] | None
    fault: str = ""


def ask(command: Sequence[str], limit_s: float, environ: Mapping[str, str] | None = None) -> Answer:
    """Run a command that prints a JSON object in its last line.

    Returns within `limit_s` and a second, whatever the child does: one that cannot even be killed, because it
    waits for a file system, is left behind.

    Args:
        command: the command.
        limit_s: seconds that it may take.
        environ: its environment; None: this process's own.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environ, start_new_session=True
            )
        except OSError as error:
            return Answer(None, f"{command[0]} cannot be started ({error.strerror})")
        if not _has_ended(process, limit_s, _interrupted):
            if _interrupted.is_set():
                _signal(process, signal.SIGTERM)
                _has_ended(process, LAST_WORDS_S)
            _signal(process, signal.SIGKILL)
            _has_ended(process, 1.0)
            return Answer(None, "interrupted" if _interrupted.is_set() else f"no answer within {limit_s:g} s")
        out.seek(0)
        err.seek(0)
        printed, said = (file.read().decode("utf-8", "replace") for file in (out, err))
    found = facts_in(printed)
    if found is not None:
        return Answer(found)
    code = process.returncode
    if code < 0:
        return Answer(None, f"it died of signal {signal.Signals(-code).name}")
    last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), f"exit code {code}")
    return Answer(None, last[:300])


def facts_in(printed: str) -> dict[str, Any] | None:
    """Return the last line that is a JSON object; or all of the text, if it is one."""
    for text in (*reversed([line for line in printed.splitlines() if line.startswith("{")]), printed):
        with suppress(ValueError):
            found = json.loads(text)
            if isinstance(found, dict):
                return found
    return None


def ask_python(code: str, *arguments: str, limit_s: float) -> Answer:
    """Run a program of Python, which gets the arguments in `sys.argv[1:]`.

    It imports from the folders of this process, in their order: those of PYTHONPATH are behind libraries.
    """
    paths = f"import sys; sys.path[:] = {sys.path!r}\n"
    return ask([sys.executable, "-c", paths + code, *arguments], limit_s)


@contextmanager
def asking(num_threads: int) -> Iterator[Executor]:
    """Give threads that ask; if this thread is interrupted, by Ctrl-C or TERM, their children are ended.

    For the main thread.

    Raises:
        SystemExit: on TERM.
    """

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        with ThreadPoolExecutor(num_threads) as pool:
            try:
                yield pool
            except BaseException:
                _interrupted.set()
                raise
    finally:
        _interrupted.clear()
        signal.signal(signal.SIGTERM, before)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _has_ended(
    process: subprocess.Popen[bytes], limit_s: float, unless: threading.Event | None = None
) -> bool:
    end_s = time.monotonic() + limit_s
    while process.poll() is None:
        if time.monotonic() > end_s or (unless is not None and unless.is_set()):
            return False
        time.sleep(POLL_S)
    return True


class Watch:
    """Watches the stages of this process; one that takes too long is named, and the process exits with 1.

    Make it before MPI and threads are loaded, because it forks.

    Args:
        limit_s: seconds that a stage may take.
        tell: prints what has hung; called in the process that watches.
    """

    def __init__(self, limit_s: float, tell: Callable[[str], None]) -> None:
        self._limit_s = limit_s
        reading, self._writing = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._writing)
            try:
                _watch(reading, limit_s, tell)
            finally:
                os._exit(0)
        os.close(reading)
        os.set_inheritable(self._writing, False)
        self._nowhere = open(os.devnull, "w")  # noqa: SIM115 - as long as the process

    def stage(self, what: str) -> None:
        """Begin a stage.

        Args:
            what: what it does, in some words.
        """
        os.write(self._writing, f"{what}\n".encode())
        # A thread in C, which needs no interpreter; a second later, so that the sentence comes first.
        faulthandler.dump_traceback_later(self._limit_s + 1.0, exit=True, file=self._nowhere)

    def close(self) -> None:
        """Stop watching."""
        faulthandler.cancel_dump_traceback_later()
        os.close(self._writing)
        os.waitpid(self._pid, 0)


def _watch(reading: int, limit_s: float, tell: Callable[[str], None]) -> None:
    doing = "the start"
    while True:
        ready, _, _ = select.select([reading], [], [], limit_s)
        if not ready:
            tell(doing)
            return
        said = os.read(reading, 65536)
        if not said:
            return
        doing = said.decode().splitlines()[-1]
