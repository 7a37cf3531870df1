"""Whether a process of this host still runs."""

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
