"""Compare the files that DNNs started from with what they are now; a resumed DNN does not read them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from hpcbal.checkpoint.digest import digest_of
from hpcbal.telemetry.ledger import InitialWeightsLine


def changed_files(starts: Iterable[InitialWeightsLine]) -> list[str]:
    """A sentence for each DNN whose file is gone, or holds something else than at its start.

    Args:
        starts: of the DNNs that continue from a checkpoint.
    """
    digest = cache(_digest_or_problem)
    found = []
    for start in starts:
        now = digest(start.path)
        if now != start.digest:
            what = "has changed" if len(now) == len(start.digest) else f"cannot be read any more ({now})"
            found.append(
                f"{start.path}: {what} since {start.dnn} started from it; {start.dnn} continues from its "
                "checkpoint, which does not need it"
            )
    return found


def _digest_or_problem(path: str) -> str:
    try:
        return digest_of(Path(path))
    except OSError as error:
        return error.strerror or str(error)
