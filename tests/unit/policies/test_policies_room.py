"""What holds for the room as a whole: it is pure, and its tables are complete."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hpcbal.policies
from hpcbal.policies.batching import BATCHING


def test_policies_load_nothing_but_numpy_and_the_standard_library() -> None:
    script = (
        "import sys, hpcbal.policies\n"
        "roots = {name.partition('.')[0] for name in sys.modules}\n"
        "print(*sorted(roots & {'mpi4py', 'tensorflow', 'horovod', 'h5py', 'yaml', 'PIL', 'sklearn'}))\n"
        "print(*sorted(n for n in sys.modules if n.startswith('hpcbal.') and n.count('.') == 1))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    foreign, rooms = done.stdout.split("\n")[:2]
    assert foreign == ""
    assert set(rooms.split()) <= {"hpcbal.policies", "hpcbal.cluster", "hpcbal.control", "hpcbal.errors"}


def test_every_public_name_exists() -> None:
    assert all(hasattr(hpcbal.policies, name) for name in hpcbal.policies.__all__)


def test_the_batching_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        BATCHING["other"] = BATCHING["even"]  # type: ignore[index]
