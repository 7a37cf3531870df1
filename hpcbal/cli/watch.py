"""`hpcbal watch`: follow a run on a terminal, from its files, until q or Ctrl-C."""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbal.cli.options import Subparsers
from hpcbal.errors import ExitCode, InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hpcbal.planning.calibration import EarlierRun
    from hpcbal.report.model import ReportData
    from hpcbal.telemetry.ledger.run import RunStartedLine

REFRESH_S = 2.0
PAUSE = 50.0
"""The files are read again after this many times the seconds that this took last: at most 2 % of a core."""


def add_parser(verbs: Subparsers) -> None:
    """Add the verb to the program's parser."""
    parser = verbs.add_parser(
        "watch",
        help="follow a run on a terminal",
        description="Show on a terminal what a run's slots do over time, its curves, who is next, and when "
        "it is expected to end; also works over ssh, before the run has begun, and after it. It only reads "
        "the files of the run. q and Ctrl-C quit; the run goes on.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="output directory of a run")
    parser.set_defaults(function=run)


def run(args: argparse.Namespace) -> int:
    """Draw the run again and again until q, Ctrl-C, or the end of the terminal."""
    if not sys.stdout.isatty():
        raise InputError(
            f"hpcbal watch draws on a terminal, and stdout is none: use 'hpcbal status {args.directory}'"
        )
    try:
        from rich.console import Console
        from rich.live import Live
    except ModuleNotFoundError as error:
        raise InputError(
            "hpcbal watch needs rich, which comes with Keras: pip install 'hpcbal[watch]', or use "
            f"'hpcbal status --watch {args.directory}'"
        ) from error
    console, watch = Console(), Watch(args.directory)
    view, seconds = watch.look()
    try:
        with Live(view, console=console, screen=True, auto_refresh=False) as live, _wakes() as wakes:
            live.refresh()
            due_s = time.monotonic() + max(REFRESH_S, PAUSE * seconds)
            while True:
                woken = wakes(max(0.0, due_s - time.monotonic()))
                if "q" in woken:
                    return int(ExitCode.DONE)
                if time.monotonic() >= due_s:
                    view, seconds = watch.look()
                    due_s = time.monotonic() + max(REFRESH_S, PAUSE * seconds)
                live.update(view, refresh=True)
    except KeyboardInterrupt:
        return int(ExitCode.DONE)


class Watch:
    """Reads a run and says what a terminal shows of it.

    Args:
        directory: output directory of the run, which may not have begun.
    """

    def __init__(self, directory: Path) -> None:
        from hpcbal.report.reading.run_files import RunReading
        from hpcbal.telemetry.files.run_directory import RunDirectory

        self._files = RunDirectory(directory)
        self._reading = RunReading(directory)
        self._data: ReportData | None = None
        self._seen: tuple[object, ...] = ()
        self._runs: tuple[RunStartedLine, list[EarlierRun]] | None = None

    def look(self, now_s: float | None = None) -> tuple[RenderableType, float]:
        """Return what to show, and for how many seconds a core was busy with it.

        Args:
            now_s: Unix seconds (default: the current time).

        Raises:
            InputError: the directory holds no run, or its files are from another version.
        """
        from rich.text import Text

        from hpcbal.planning.calibration import time_band
        from hpcbal.report.terminal import RunView, remaining_s

        began_s, now_s = time.process_time(), time.time() if now_s is None else now_s
        self._files.check_exists()
        if not self._has_begun():
            text = Text(f"{self._files.root}: the run has not begun\n\nq quits")
            return text, time.process_time() - began_s
        seen = tuple(map(_stamp, (self._files.ledger, self._files.status)))
        if self._data is None or seen != self._seen or self._data.state == "running":
            self._data, self._seen = self._reading.read(now_s), seen
        left_s = remaining_s(self._data, self._reading.status, now_s)
        band = None if left_s is None else time_band(left_s, self._earlier_runs(), has_begun=True)
        view = RunView(self._data, self._reading.status, band, now_s)
        return view, time.process_time() - began_s

    def _has_begun(self) -> bool:
        """Whether there is a ledger to read; what a run leaves before it has one says that it will come."""
        files = self._files
        if files.ledger.exists() and files.ledger.stat().st_size:
            return True
        if any(path.exists() for path in (files.config, files.batch_jobs, files.lock, files.logs)):
            return False
        raise InputError(f"{files.root}: no ledger.jsonl: not the output directory of a run")

    def _earlier_runs(self) -> list[EarlierRun]:
        from hpcbal.planning.calibration import RunKey, read_runs, site_name

        start = self._reading.start
        if self._runs is None or self._runs[0] is not start:
            key = RunKey(start.kind, start.computed_by, site_name())
            self._runs = start, read_runs(key, lambda warning: None)
        return self._runs[1]


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime_ns


@contextmanager
def _wakes() -> Iterator[Callable[[float], str]]:
    """Give a function that waits for keys, for a new size of the terminal, or for some seconds.

    It returns the keys. Meanwhile keys are not shown, and come without Enter.
    """
    import termios
    import tty

    stdin = sys.stdin.fileno() if sys.stdin.isatty() else None
    before = None if stdin is None else termios.tcgetattr(stdin)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)

    def wait(seconds: float) -> str:
        ready, _, _ = select.select([woken, *([] if stdin is None else [stdin])], [], [], seconds)
        if woken in ready:
            os.read(woken, 1024)
        return os.read(stdin, 1024).decode("utf-8", "replace") if stdin in ready else ""

    old = signal.signal(signal.SIGWINCH, lambda number, frame: _poke(wake))
    try:
        if stdin is not None:
            tty.setcbreak(stdin)
        yield wait
    finally:
        signal.signal(signal.SIGWINCH, old)
        if stdin is not None and before is not None:
            termios.tcsetattr(stdin, termios.TCSADRAIN, before)
        os.close(woken)
        os.close(wake)


def _poke(pipe: int) -> None:
    with suppress(BlockingIOError):
        os.write(pipe, b"w")
