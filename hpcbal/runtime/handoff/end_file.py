"""The file through which a job script learns how the run has ended.

A launcher's exit code does not say it: mpirun ends with 0 when it has lost a node, and a model may end its
process with code 75 (`os._exit`). The script creates the file and names
it in HPCBAL_END_FILE. Rank 0 appends lines: `undecided` when all ranks catch signals, `progress` when this
start has got further than the ones before, and the exit code of the run at its end.
"""

from __future__ import annotations

import contextlib
import os

from hpcbal import env

UNDECIDED = "undecided"
PROGRESS = "progress"


def note_end(text: str) -> None:
    """Append a line to the file, if a job script has named one and it can be written."""
    _append(text, always=True)


def note_progress() -> None:
    """Append that this start has got further, unless the file says so."""
    _append(PROGRESS, always=False)


def _append(text: str, *, always: bool) -> None:
    path = env.read("HPCBAL_END_FILE")
    if path is None:
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW)
        with open(descriptor, "r+", encoding="utf-8", errors="replace") as file:
            if always or text not in file.read().split():
                file.write(f"{text}\n")
