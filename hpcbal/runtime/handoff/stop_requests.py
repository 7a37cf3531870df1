"""DNNs that the user asks to stop: files in the run's directory, which all starts read.

The files are the record: DNNs are asked to stop once the file with their names is there, whatever is killed
afterwards.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from hpcbal.errors import OutputError
from hpcbal.telemetry import RunDirectory
from hpcbal.telemetry.files.atomic_file import (
    cannot_read,
    output_error,
    read_text,
    sync_directory,
    write_atomic,
)

_SUFFIX = ".names"


def ask_to_stop(run: RunDirectory, names: Sequence[str]) -> None:
    """Ask to stop DNNs: after this call the request is on the disk, as a whole.

    Raises:
        OutputError: if the file cannot be written.
    """
    folder = run.stop_requests
    try:
        folder.mkdir(exist_ok=True)
        sync_directory(run.root)
    except OSError as error:
        raise output_error(folder, error) from error
    path = folder / f"{time.time_ns()}-{os.getpid()}{_SUFFIX}"
    write_atomic(path, "".join(f"{name}\n" for name in names), durable=True)


class StopRequests:
    """Reads the requests of a run, each of them once.

    Args:
        run: the run.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._folder = run.stop_requests
        self._read: set[Path] = set()

    def take(self) -> list[str]:
        """The DNNs that have been asked to stop since the last call, in the order of the requests.

        Raises:
            OutputError: if a request cannot be read.
        """
        try:
            new = sorted({path for path in self._folder.iterdir() if path.suffix == _SUFFIX} - self._read)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise output_error(self._folder, error, "read") from error
        names: dict[str, None] = {}
        for path in new:
            try:
                names |= dict.fromkeys(read_text(path).splitlines())
            except (OSError, UnicodeDecodeError) as error:
                why = cannot_read(path, error) if isinstance(error, OSError) else f"{path}: damaged"
                raise OutputError(f"{why}; remove it, and ask again") from error
            self._read.add(path)
        return list(names)
