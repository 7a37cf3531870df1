"""Whether processes of this host still run."""

from __future__ import annotations

import os
from pathlib import Path


def process_is_gone(pid: int) -> bool:
    """Whether no process `pid` runs here any more (a zombie no longer runs)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()  # bytes: a process may have any name
    except (FileNotFoundError, ProcessLookupError):  # the latter where it goes between opening and reading
        return Path("/proc/self/stat").exists()  # gone in between; without /proc we can't tell more
    return status.rpartition(b")")[2].split()[0] in (b"Z", b"X")


def started_with(name: str, value: str) -> set[int]:
    """Ids of this user's processes here (zombies left out) that have got this environment variable.

    One is seen from the moment when its parent, if that has the variable too, has made it, until it begins to
    end; it may hold files and devices for a while after that, see `process_is_gone`.
    """
    wanted = f"{name}={value}".encode()
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = path.read_bytes().split(b"\0")
        except OSError:  # it has just ended, or is another user's
            continue
        if wanted in variables:
            found.add(int(path.parent.name))
    return found
