"""Logs: one file per rank; on stderr what rank 0 decides, and the first traceback of any rank, once."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import TextIO

from hpcbal.telemetry.files.atomic_file import output_error, remove_quietly
from hpcbal.telemetry.files.run_directory import RunDirectory

_PACKAGE = "hpcbal"


class RankLogging:
    """The handlers of this process; `close` takes them away again."""

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
) -> RankLogging:
    """Send the log of this rank where it belongs.

    `logs/rank-NNN.log` gets hpcbal's records from `level` on and warnings of other libraries; a later start
    appends. Rank 0 also shows hpcbal's INFO and above on stderr, short. The first record with a traceback of
    any rank is shown on stderr with rank and host and kept in `logs/first-error.txt`; later ones stand in the
    rank logs only, since they usually follow from the first.

    Args:
        output_dir: of the run.
        rank: of this process. Rank 0 must come here before any other rank: it clears the first error of an
            earlier start.
        host: for people.
        level: of the rank log, a level of `logging`.
        stream: instead of stderr, for tests.

    Raises:
        OutputError: if the log cannot be opened.
    """
    run = RunDirectory(Path(output_dir))
    path = run.rank_log(rank)
    try:
        run.logs.mkdir(parents=True, exist_ok=True)
        file = logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise output_error(path, error, "open the log") from error
    who = f"{host}:{rank}".replace("%", "%%")
    line = f"%(asctime)s.%(msecs)03d {who} %(levelname)s %(name)s: %(message)s"
    file.setFormatter(logging.Formatter(line, "%Y-%m-%d %H:%M:%S"))
    handlers: list[logging.Handler] = [file]
    if rank == 0:
        remove_quietly(run.first_error)
        console = logging.StreamHandler(stream or sys.stderr)
        console.setLevel(max(level, logging.INFO))
        console.setFormatter(_OneLine())
        console.addFilter(_from_hpcbal)
        handlers.append(console)
    handlers.append(_FirstTraceback(run.first_error, rank, host, stream or sys.stderr))
    return RankLogging(handlers, level)


def _from_hpcbal(record: logging.LogRecord) -> bool:
    """Whether the console shows `record`: hpcbal's own, and what is serious."""
    return record.levelno >= logging.ERROR or record.name.split(".")[0] == _PACKAGE


class _OneLine(logging.Formatter):
    """`hpcbal: message`, with the level if it is not INFO; tracebacks are `_FirstTraceback`'s task."""

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno <= logging.INFO else f" {record.levelname.lower()}:"
        return f"hpcbal:{level} {record.getMessage()}"


class _FirstTraceback(logging.Handler):
    """Shows a traceback if no other rank of this start has shown one.

    Whoever makes the file `logs/first-error.txt` is the first: this needs no message between the ranks, which
    may be waiting in a collective that never ends.
    """

    def __init__(self, path: Path, rank: int, host: str, stream: TextIO) -> None:
        super().__init__(logging.ERROR)
        self._path = path
        self._title = f"first error of the run: rank {rank} on {host}"
        self._stream = stream
        self._formatter = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        if not record.exc_info or record.exc_info[0] is None:
            return
        text = f"{self._title}: {self._formatter.format(record)}\n"
        try:
            with open(self._path, "x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            return
        except OSError:  # the disk is full or gone: show it all the same
            text = f"{text}(cannot be kept in {self._path})\n"
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self.handleError(record)
