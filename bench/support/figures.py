"""The frame of every bench: its command line with `--json`, and the file of its figures with their origin."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """Return the parser of a script, with its docstring as the description, and `--json FILE`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures and their origin to this file"
    )
    return parser


def write_figures(path: Path | None, figures: Mapping[str, object]) -> None:
    """Write figures as one flat object, with commit and machine, to the file of `--json` if there is one."""
    if path is not None:
        path.write_text(json.dumps({**figures, **_provenance()}, indent=2) + "\n", encoding="utf-8")


def _provenance() -> dict[str, object]:
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
