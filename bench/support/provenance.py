"""The origin of a figure, for the JSON of every bench: commit and machine."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path


def provenance() -> dict[str, object]:
    """Commit (with a `+` if the tree has changes), machine, cores and Python."""
    return {
        "commit": _commit(),
        "machine": f"{platform.system()} {platform.machine()}",
        "num_cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }


def _commit() -> str | None:
    """None outside a clone, or without git."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        git = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return git.stdout.strip()
