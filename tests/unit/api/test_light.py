"""`import hpcbal` loads nothing; names are loaded when they are used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hpcbal


def modules_after(program: str) -> set[str]:
    code = f"{program}\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)
    return set(done.stdout.decode().split())


def test_importing_hpcbal_loads_nothing_else() -> None:
    """Not even modules of its own, and no library."""
    loaded = modules_after("import hpcbal")
    assert {name for name in loaded if name.startswith("hpcbal")} == {"hpcbal"}
    heavy = {"numpy", "pydantic", "yaml", "h5py", "mpi4py", "tensorflow", "keras", "torch", "pandas"}
    assert loaded & heavy == set()


def test_starting_and_watching_loads_nothing_that_only_ranks_need() -> None:
    loaded = modules_after("import hpcbal; hpcbal.run, hpcbal.load, hpcbal.plan, hpcbal.simulate, hpcbal.Run")
    assert loaded & {"numpy", "h5py", "mpi4py", "tensorflow", "keras", "torch", "pandas", "pydantic"} == set()


def test_every_name_can_be_loaded_and_is_listed() -> None:
    assert set(hpcbal.__all__) <= set(dir(hpcbal))
    for name in hpcbal.__all__:
        assert getattr(hpcbal, name).__name__ == name


def test_type_checkers_of_others_see_the_types() -> None:
    assert (Path(hpcbal.__file__).parent / "py.typed").is_file()


def test_other_names_are_an_error() -> None:
    with pytest.raises(AttributeError, match="module 'hpcbal' has no attribute 'trian'"):
        hpcbal.trian  # noqa: B018
