"""The file through which a job script learns how the run has ended.

A launcher's exit code does not say it: mpirun ends with 0 when it has lost a node, and a model may end its
process with code 75 in ways that Python cannot catch (`_exit` of C). The script creates the file and names
it in HPCBAL_END_FILE. Rank 0 writes `undecided` when all ranks catch signals, and the exit code of the run
at its end.
"""

from __future__ import annotations

import contextlib
import os

from hpcbal import env

UNDECIDED = "undecided"


def note_end(text: str) -> None:
    """Replace the content of the file, if a job script has named one and it can be written."""
    path = env.read("HPCBAL_END_FILE")
    if path is None:
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{text}\n")
