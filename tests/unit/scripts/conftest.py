"""A copy of the clone's set-up files, and a PATH on which a test decides what is there."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# What the set-up uses of a bare machine.
_TOOLS = [
    "basename",
    "bash",
    "cat",
    "chmod",
    "cp",
    "cut",
    "dirname",
    "env",
    "grep",
    "head",
    "ln",
    "ls",
    "mkdir",
    "mv",
    "nproc",
    "printf",
    "rm",
    "rmdir",
    "sed",
    "sha256sum",
    "sleep",
    "sort",
    "tail",
    "touch",
    "tr",
    "uname",
    "wc",
]


@dataclass
class Machine:
    """A machine with coreutils, and what a test adds; a clone of the scripts without .venv."""

    clone: Path
    bin: Path
    environ: dict[str, str] = field(default_factory=dict)

    def add_tool(self, name: str, text: str) -> Path:
        """Put a shell script on PATH."""
        path = self.bin / name
        path.write_text(f"#!/usr/bin/env bash\n{text}\n")
        path.chmod(0o755)
        return path

    def run(self, *command: str, timeout_s: float = 60, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the clone with nothing but this machine's PATH."""
        return subprocess.run(
            command,
            cwd=self.clone,
            env=self.environment(environ),
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """The environment of a command on this machine."""
        return {"PATH": str(self.bin), "HOME": str(self.clone.parent), **self.environ, **more}

    def source(self, text: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run shell code that has sourced scripts/setup.sh."""
        return self.run("bash", "-c", f"source scripts/setup.sh\n{text}", **environ)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A bare machine: no Python, no compiler, no MPI."""
    clone = tmp_path / "clone"
    shutil.copytree(ROOT / "scripts", clone / "scripts")
    for name in ("pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, clone)
    for path in ROOT.glob("hpcbal/**/*.c"):
        (clone / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, clone / path.relative_to(ROOT))
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in _TOOLS:
        found = shutil.which(tool)
        assert found is not None, tool
        (folder / tool).symlink_to(found)
    return Machine(clone, folder)


@pytest.fixture
def add_python(machine: Machine) -> Callable[..., Path]:
    """Put a stand-in on PATH that answers as a Python of the given version does."""

    def add(version: str, name: str = "python3", modules: bool = True) -> Path:
        path = machine.bin / name
        ensurepip = ":" if modules else "exit 1"
        return machine.add_tool(
            name,
            f'case "$*" in\n'
            f'  *_base_executable*) echo "{version} {path}" ;;\n'
            f"  *ensurepip*) {ensurepip} ;;\n"
            f"  *SOABI*) echo cpython-311-test ;;\n"
            f"  *) exit 9 ;;\nesac",
        )

    return add
