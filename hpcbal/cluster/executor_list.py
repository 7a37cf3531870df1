"""Names of executors, as people and sites write them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hpcbal.errors import InputError

LEAST_EXECUTORS = 2
"""A worker and a server."""

_RANKS = re.compile(r"[0-9]{1,9}(-[0-9]{1,9})?(\s*,\s*[0-9]{1,9}(-[0-9]{1,9})?)*")


def executors_of(text: str, executors: Sequence[int]) -> tuple[int, ...]:
    """The executors that a text names.

    Args:
        text: `all`; a number, which means the first so many; or ranks such as `1-4,7` with a comma or hyphen.
        executors: ranks of all executors, ascending.

    Returns: ranks, ascending, at least two.

    Raises:
        InputError: if the text is something else.
    """
    given = text.strip()
    first, last = executors[0], executors[-1]
    wrong = InputError(
        f"executors: got {given[:40]!r}, allowed: all, a number of executors from {LEAST_EXECUTORS} to "
        f"{len(executors)}, or ranks of {first} to {last} such as {first}-{first + 1},{last}"
    )
    if given == "all":
        return tuple(executors)
    if not _RANKS.fullmatch(given):
        raise wrong
    if given.isdigit():
        count = int(given)
        if not LEAST_EXECUTORS <= count <= len(executors):
            raise wrong
        return tuple(executors[:count])
    chosen: set[int] = set()
    for part in given.split(","):
        low, _, high = part.partition("-")
        begin, end = int(low), int(high or low)
        if not first <= begin <= end <= last:
            raise wrong
        chosen.update(range(begin, end + 1))
    chosen.intersection_update(executors)
    if len(chosen) < LEAST_EXECUTORS:
        raise wrong
    return tuple(sorted(chosen))
