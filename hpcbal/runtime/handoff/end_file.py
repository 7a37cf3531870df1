"""The file through which a job script learns how the run has ended.

A launcher's exit code does not say it: mpirun ends with 0 when it has lost a node, and a model may end its
process with code 75 (`os._exit`). The script appends `start` to the file, and names it in HPCBAL_END_FILE.
Rank 0 appends lines: `undecided` when all ranks catch signals, `progress` when this start has got further
than the ones before, and the exit code of the run at its end. A rank that ends the job because of an error
appends its code, and one that sees another die appends `lost: ` and a sentence. With several nodes rank 0
appends `nodes: ` and their hosts, and ranks that see others die `seen: ` and their host: a node without one
may have been lost.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence

from hpcbal import env
from hpcbal.cluster.job_end import LOST, NODES, PROGRESS, SEEN, ends_job, starts_of
from hpcbal.safe_text import one_line


def note_end(text: str) -> None:
    """Append a line to the file, if a job script has named one and it can be written."""
    _append(text, lambda line: False)


def note_progress() -> None:
    """Append that this start has got further, unless the file says so."""
    _append(PROGRESS, PROGRESS.__eq__)


def note_nodes(hosts: Sequence[str]) -> None:
    """Append the hosts of all nodes."""
    note_end(NODES + " ".join(hosts))


def note_loss(sentence: str, host: str) -> str | None:
    """Let the job script report which rank was lost, unless the file says how the job ends.

    On several nodes, MPI ends ranks that were connected to the lost one, and each of their nodes sees them
    die, too: the first line counts. All that within milliseconds, in which what ranks print may be lost.

    Args:
        sentence: about the loss.
        host: of this rank.

    Returns:
        The loss that the job script reports, empty if it is none; None if this rank must report it.
    """
    line = _append(f"{LOST}{one_line(sentence)}", ends_job)
    _append(f"{SEEN}{host}", f"{SEEN}{host}".__eq__)
    if line is None:
        return None
    return line.removeprefix(LOST) if line.startswith(LOST) else ""


def _append(text: str, is_known: Callable[[str], bool]) -> str | None:
    """Append a line, unless this start has one that makes it needless.

    Returns:
        The line that is in the file now, of these two; None if there is no file, or it cannot be written.
    """
    path = env.read("HPCBAL_END_FILE")
    if path is None:
        return None
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW)
        with open(descriptor, "r+", encoding="utf-8", errors="replace") as file:
            known = next(filter(is_known, starts_of(file.read())[-1]), None)
            if known is None:
                file.write(f"{text}\n")
        return text if known is None else known
    return None
