"""Where a figure comes from: the commit and the machine, for the JSON of every bench."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path


def provenance() -> dict[str, object]:
    """Commit (with a `+` when the tree has changes), machine, cores and Python."""
    here = Path(__file__).parent
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "commit": git.stdout.strip() if git.returncode == 0 else None,
        "machine": f"{platform.system()} {platform.machine()}",
        "num_cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }
