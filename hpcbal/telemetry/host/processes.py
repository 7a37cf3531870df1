"""Find out whether processes on this host are still running."""

from __future__ import annotations

import os
from pathlib import Path


def process_is_gone(pid: int) -> bool:
    """Whether process `pid` no longer runs on this host; a zombie does not run."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # the latter: no process has such a large id
        return True
    except PermissionError:
        return False
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()  # bytes: a process may have any name
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends between opening and reading
        return Path("/proc/self/stat").exists()  # it has just ended; without /proc, assume it runs
    return status.rpartition(b")")[2].split()[0] in (b"Z", b"X")


def living_children(pid: int) -> list[int] | None:
    """Ids of the running processes that `pid` has started; None if the system does not list them."""
    try:
        lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:  # it has just ended
        return None
    if not lists:
        return None
    return [child for text in lists for child in map(int, text.split()) if not process_is_gone(child)]


def started_with(name: str, value: str) -> set[int]:
    """Ids of this user's processes on this host, without zombies, that have this environment variable.

    If its parent has the variable too, a process is found as soon as it is created. It is found until it
    begins to end; after that it may still hold files and devices for a while, see `process_is_gone`.
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
