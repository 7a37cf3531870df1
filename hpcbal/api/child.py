"""A command of hpcbal as a child process, which stops when the process that has started it ends."""

from __future__ import annotations

import atexit
import codecs
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

from hpcbal.cluster.started import detect_launcher
from hpcbal.errors import INTERRUPTED, ExitCode, InputError, OutputError, RunFailed, RunRefused
from hpcbal.processes import own_stream, say, shielding
from hpcbal.runtime.handoff.supervision import STARTER
from hpcbal.stop_signals import STOP_SIGNALS

POLL_INTERVAL_S = 0.1
BETWEEN_SIGNALS_S = 0.5
"""Two signals that come at once are seen as one."""
_MOST_KEPT_BYTES, _MOST_KEPT_LINES = 1 << 16, 40
_CHUNK_BYTES = 1 << 16

_running: set[Child] = set()


class Child:
    """One command, in a session of its own: the terminal's Ctrl-C reaches this process only.

    It prints into a file without a name, so that nobody has to read along. It keeps signals until it can
    handle them, and stops cleanly when this process ends for any reason.

    Args:
        words: the command line without the program's name.
        directory: the output directory that it is about, for messages.
        has_answer: whether its standard output is an answer, and only the rest is to be shown.
        keeps: descriptors of files that it keeps open until it ends.

    Raises:
        InputError: if a launcher has started this process, as a rank.
        OutputError: if no temporary file can be made.
    """

    def __init__(
        self, words: Sequence[str], directory: Path, *, has_answer: bool = False, keeps: Sequence[int] = ()
    ) -> None:
        refuse_rank(words[0])
        self._directory, self._verb = directory, words[0]
        self._root = os.path.realpath(directory)  # also if the script changes the current directory
        self._starter, self._is_asked = os.getpid(), False
        self._read_to, self._decoder = 0, codecs.getincrementaldecoder("utf-8")("replace")
        try:
            self._output = tempfile.TemporaryFile()  # noqa: SIM115 - for as long as this object lives
            self._answer = tempfile.TemporaryFile() if has_answer else self._output  # noqa: SIM115
        except OSError as error:
            raise OutputError(
                f"cannot create a temporary file: {error}; set TMPDIR to a writable folder"
            ) from error
        for file in {self._output, self._answer}:
            weakref.finalize(self, file.close).atexit = False
        with shielding(STOP_SIGNALS):
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hpcbal", *words],
                stdin=subprocess.DEVNULL,
                stdout=self._answer,
                stderr=self._output,
                env=_environment(),
                pass_fds=keeps,
                start_new_session=True,
            )
        _running.add(self)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Its exit code, as a shell shows it; None while it runs.

        Raises:
            InputError: in a forked copy of the process; only the original learns when the verb ends.
        """
        if os.getpid() != self._starter:
            raise InputError(
                f"{self._directory}: another process has started 'hpcbal {self._verb}'; in a forked copy use "
                "hpcbal.load"
            )
        code = self._process.poll()
        if code is None:
            return None
        _running.discard(self)
        return code if code >= 0 else 128 - code

    def is_run_in(self, directory: Path) -> bool:
        """Whether it is a run in this directory that goes on, started by this process."""
        is_own = self._starter == os.getpid() and self._verb == "run"
        return is_own and self.code is None and self._root == os.path.realpath(directory)

    def stop(self, *, kill: bool = False) -> None:
        """Ask it to stop cleanly, once; or to kill its ranks, too."""
        if not self._is_asked:
            self._is_asked = True
            self._process.send_signal(signal.SIGUSR2)  # nobody hurries: slow steps may end, and are saved
            if kill:
                time.sleep(BETWEEN_SIGNALS_S)
        if kill:
            self._process.send_signal(signal.SIGINT)

    def wait(self, timeout_s: float | None = None, *, show: bool) -> int:
        """Wait for its end; Ctrl-C stops it cleanly, and once more kills its ranks, as on the command line.

        Args:
            timeout_s: how long; None: as long as it takes.
            show: whether to print what it prints.

        Returns:
            Its exit code.

        Raises:
            TimeoutError: if it still runs then.
            KeyboardInterrupt: after its end, if there was a Ctrl-C.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        is_interrupted = False
        while True:
            try:
                code = self.code
                if show:
                    self._show(is_last=code is not None)
                if code is not None:
                    break
                if until_s is not None and time.monotonic() >= until_s:
                    raise TimeoutError(f"{self._directory}: 'hpcbal {self._verb}' still runs")
                if not threading.main_thread().is_alive():  # Python ends the script after this thread
                    self.stop_with_script()
                time.sleep(POLL_INTERVAL_S)
            except KeyboardInterrupt:
                self.stop(kill=is_interrupted)
                is_interrupted, until_s = True, None
        if is_interrupted:
            raise KeyboardInterrupt
        return code

    def check(self, code: int, allowed: Sequence[int] = (0,)) -> None:
        """Raise an error if it has ended with a code that is not allowed.

        A clean stop is allowed if it was asked for.

        Raises:
            RunRefused: for wrong input.
            RunFailed: for any other code.
        """
        if code in allowed or (self._is_asked and code in (ExitCode.RUN_AGAIN, INTERRUPTED)):
            return
        kind = RunRefused if code == ExitCode.WRONG_INPUT else RunFailed
        raise kind(f"hpcbal {self._verb}", code, str(self._directory), self.last_lines())

    def last_lines(self) -> str:
        """The end of what it has printed."""
        size = os.fstat(self._output.fileno()).st_size
        start = max(0, size - _MOST_KEPT_BYTES)
        text = os.pread(self._output.fileno(), size - start, start).decode("utf-8", "replace")
        return "\n".join(text.splitlines()[-_MOST_KEPT_LINES:])

    def answer(self) -> str:
        """Return what the command has printed on its standard output."""
        descriptor = self._answer.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode("utf-8", "replace")

    def _show(self, *, is_last: bool) -> None:
        """Print what it has printed since the last call."""
        while True:
            chunk = os.pread(self._output.fileno(), _CHUNK_BYTES, self._read_to)
            self._read_to += len(chunk)
            stream = own_stream("stdout")
            text = self._decoder.decode(chunk, final=is_last and not chunk)
            if stream is not None and text:
                with contextlib.suppress(OSError, ValueError):  # it is closed, or its reader has gone
                    stream.write(text)
                    stream.flush()
            if not chunk:
                return

    def stop_with_script(self) -> bool:
        """Stop it because this process ends; returns whether to wait for its end."""
        if os.getpid() != self._starter or self.code is not None:  # a forked copy has not started it
            return False
        if not self._is_asked:
            say(
                f"hpcbal: {self._directory}: the script ends before 'hpcbal {self._verb}', which now stops "
                "cleanly; the same call continues it, and wait() waits for its end"
            )
            self.stop()
        return True


def refuse_rank(verb: str) -> None:
    """Refuse to start anything in a rank; call it before the directory of a run is touched.

    Raises:
        InputError: if a launcher has started this process.
    """
    launcher = detect_launcher(os.environ)
    if launcher is not None:
        raise InputError(
            f"hpcbal {verb}: {launcher.name} has started this process as a rank; call it in a script "
            "that no launcher starts. If a run has imported this script for a model, put its calls under "
            'if __name__ == "__main__":'
        )


def refuse_second(directory: Path) -> None:
    """Refuse to start a run in a directory where one of this process goes on; its files are still read.

    Raises:
        OutputError: if there is one.
    """
    if any(child.is_run_in(directory) for child in list(_running)):
        raise OutputError(
            f"{directory}: this process has started a run here that goes on; wait() for it, stop() it, or "
            "choose another directory with output"
        )


def _environment() -> dict[str, str]:
    """The child's environment: it finds modules beside the script, and knows who has started it."""
    environ = {**os.environ, STARTER: str(os.getpid())}
    from hpcbal.config.source.given import script_file

    script = script_file()
    if script is not None:
        folder = str(script.parent)
        known = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        environ["PYTHONPATH"] = os.pathsep.join([*known, *([] if folder in known else [folder])])
    return environ


@atexit.register
def _end_all() -> None:
    for child in [each for each in list(_running) if each.stop_with_script()]:
        with contextlib.suppress(KeyboardInterrupt):
            child.wait(show=False)
