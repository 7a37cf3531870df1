"""Properties of the room as a whole: it is pure, and its table cannot be changed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hpcbal.policies.batching import BATCHING

SCRIPT = """
import importlib, pkgutil, sys
import hpcbal.policies
names = [m.name for m in pkgutil.walk_packages(hpcbal.policies.__path__, 'hpcbal.policies.')]
for name in names:
    importlib.import_module(name)
tops = {name.partition('.')[0] for name in sys.modules}
heavy = {'mpi4py', 'tensorflow', 'horovod', 'h5py', 'yaml', 'pydantic', 'PIL', 'sklearn', 'psutil'}
print(*names)
print(*sorted(tops & heavy))
print(*sorted(n for n in sys.modules if n.startswith('hpcbal.') and n.count('.') == 1))
"""


def test_no_module_of_the_room_loads_foreign_packages_or_rooms_that_do() -> None:
    """In a separate interpreter, so what is loaded on the way counts too."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    modules, foreign, rooms = done.stdout.split("\n")[:3]
    assert "hpcbal.policies.batching.fitted" in modules.split()
    assert foreign == ""
    pure = {"cluster", "ensembling", "errors", "events", "safe_text"}
    assert set(rooms.split()) == {"hpcbal.policies", *(f"hpcbal.{name}" for name in pure)}


def test_the_batching_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        BATCHING["other"] = BATCHING["even"]  # type: ignore[index]
