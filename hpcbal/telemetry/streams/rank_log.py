"""Logs: one file per rank; stderr shows the log of rank 0 and the first traceback of any rank."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import TextIO, cast

from hpcbal.processes import own_stream
from hpcbal.safe_text import printable
from hpcbal.telemetry.files.atomic_file import make_own_directory, output_error, own_file, remove_quietly
from hpcbal.telemetry.files.run_directory import RunDirectory

_PACKAGE = "hpcbal"
TOLD = "is_told"
"""An attribute of a record: whether the console need not show it, because people get to know it otherwise."""


class RankLogging:
    """The log handlers of this process; `close` removes them."""

    def __init__(self, handlers: list[logging.Handler], package_level: int) -> None:
        self._handlers = handlers
        self._level_before = logging.getLogger(_PACKAGE).level
        logging.getLogger(_PACKAGE).setLevel(package_level)
        for handler in handlers:
            logging.getLogger().addHandler(handler)

    def close(self) -> None:
        for handler in self._handlers:
            logging.getLogger().removeHandler(handler)
            handler.close()
        self._handlers = []
        logging.getLogger(_PACKAGE).setLevel(self._level_before)

    def __enter__(self) -> RankLogging:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def configure_rank_logging(
    output_dir: str | os.PathLike[str],
    rank: int,
    host: str,
    level: int = logging.INFO,
    stream: TextIO | None = None,
    folder: Path | None = None,
    console_level: int = logging.INFO,
) -> RankLogging:
    """Set up the logging of this rank.

    `logs/rank-NNN.log` gets hpcbal's records from `level` on, and warnings of other libraries; a later start
    appends. Rank 0 also prints hpcbal's records from `console_level` on to stderr, in a short form. The first
    traceback of any rank is printed to stderr with rank and host, and saved in `logs/first-error.txt`. Later
    tracebacks appear only in the rank logs, because they are usually consequences of the first.

    Args:
        output_dir: output directory of the run.
        rank: rank of this process. Rank 0 must call this before any other rank, because it removes the first
            error of an earlier start.
        host: name of this host, for the messages.
        level: level of the rank log, as in `logging`.
        stream: used instead of stderr, for tests.
        folder: where the logs go; None: into the run's folder `logs`.
        console_level: least level that rank 0 prints.

    Raises:
        OutputError: if the log cannot be opened.
    """
    run = RunDirectory(Path(output_dir))
    folder = folder or run.logs
    path, first_error = folder / run.rank_log(rank).name, folder / run.first_error.name
    try:
        for each in (run.logs, folder):
            make_own_directory(each)
        file = _OwnFile(path, encoding="utf-8")
    except OSError as error:
        raise output_error(path, error, "open the log") from error
    who = f"{host}:{rank}".replace("%", "%%")
    line = f"%(asctime)s.%(msecs)03d {who} %(levelname)s %(name)s: %(message)s"
    file.setFormatter(_Printable(line, "%Y-%m-%d %H:%M:%S"))
    handlers: list[logging.Handler] = [file]
    if rank == 0:
        remove_quietly(first_error)
        console = _Console(stream)
        console.setLevel(max(level, console_level))
        console.setFormatter(_OneLine())
        handlers.append(console)
    handlers.append(_FirstTraceback(first_error, rank, host, stream or own_stream("stderr")))
    return RankLogging(handlers, level)


class _Console(logging.StreamHandler[TextIO]):
    """Shows records of hpcbal, and errors of any library, which are among what code of users prints.

    Args:
        stream: used for both, for tests; None: the streams of this process.
    """

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__(stream or own_stream("stderr"))
        self._is_given = stream is not None
        self._is_busy = threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        is_ours = record.name.split(".")[0] == _PACKAGE
        if getattr(record, TOLD, False) or not (is_ours or record.levelno >= logging.ERROR):
            return
        if is_ours or self._is_given:
            super().emit(record)
        else:
            self._show(record)

    def _show(self, record: logging.LogRecord) -> None:
        """Print a record to `sys.stderr`, which may be anything, even what logs each line as an error again.

        Whatever goes wrong must not end the code that logs; the log of the rank has the record.
        """
        if getattr(self._is_busy, "now", False):
            return
        self._is_busy.now = True
        try:
            with contextlib.suppress(Exception):
                print(self.format(record), file=sys.stderr)
        finally:
            self._is_busy.now = False


class _OwnFile(logging.FileHandler):
    """A log file that is never opened through a symbolic link."""

    def _open(self) -> TextIOWrapper:
        file = open(self.baseFilename, self.mode, encoding=self.encoding, opener=own_file)  # noqa: SIM115
        return cast(TextIOWrapper, file)


class _Printable(logging.Formatter):
    """Formats records, tracebacks included, so that `cat` and `tail` of a log are safe."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _OneLine(logging.Formatter):
    """Formats `hpcbal: message`, with the level if above INFO; `_FirstTraceback` prints tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno <= logging.INFO else f" {record.levelname.lower()}:"
        return printable(f"hpcbal:{level} {record.getMessage()}")


class _FirstTraceback(logging.Handler):
    """Prints a traceback if no other rank of this start has printed one.

    The rank that creates the file `logs/first-error.txt` is the first. This needs no messages between the
    ranks, which may be waiting in a collective that never ends.
    """

    def __init__(self, path: Path, rank: int, host: str, stream: TextIO) -> None:
        super().__init__(logging.ERROR)
        self._path = path
        self._title = f"first error of the run: rank {rank} on {host}"
        self._stream = stream
        self._formatter = _Printable()

    def emit(self, record: logging.LogRecord) -> None:
        if not record.exc_info or record.exc_info[0] is None:
            return
        text = f"{self._title}: {self._formatter.format(record)}\n"
        try:
            with open(self._path, "x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            return
        except OSError:  # the disk is full or gone: print the traceback anyway
            text = f"{text}(cannot be saved in {self._path})\n"
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self.handleError(record)
