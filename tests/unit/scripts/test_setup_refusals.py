"""If the machine lacks something, the set-up says in one sentence what to do, and makes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Machine

AddPython = Callable[..., Path]


def refusal(machine: Machine, **environ: str) -> str:
    """The one sentence of a set-up that ends with exit code 2."""
    done = machine.run("bash", "scripts/setup.sh", **environ)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if "setting up in" not in line]
    assert len(lines) == 1, lines
    return lines[0]


def test_no_python(machine: Machine) -> None:
    told = refusal(machine)
    assert "Python 3.11 to 3.13 is needed and was not found" in told
    assert "HPCBAL_PYTHON=" in told
    assert not (machine.clone / ".venv").exists()


def test_other_python_tells_what_was_found(machine: Machine, add_python: AddPython) -> None:
    add_python("3.9.18")
    assert "python3 is 3.9.18" in refusal(machine)


def test_python_that_does_not_start_is_passed_over(machine: Machine, add_python: AddPython) -> None:
    machine.add_tool("python3.11", "echo 'pyenv: python3.11: command not found' >&2; exit 127")
    add_python("3.14.0")
    assert "python3 is 3.14.0" in refusal(machine)


def test_named_python_of_another_version(machine: Machine, add_python: AddPython) -> None:
    other = add_python("3.10.13", name="other")
    assert f"{other} is 3.10.13" in refusal(machine, HPCBAL_PYTHON=str(other))


@pytest.mark.parametrize("version", ["3.11.2", "3.13.0"])
def test_python_without_venv(machine: Machine, add_python: AddPython, version: str) -> None:
    add_python(version, modules=False)
    told = refusal(machine)
    assert "no module venv or ensurepip" in told
    assert f"apt-get install python{version[:4]}-venv" in told


def test_no_compiler(machine: Machine, add_python: AddPython) -> None:
    add_python("3.11.2")
    told = refusal(machine)
    assert "no working C++ compiler" in told
    assert "apt-get install g++" in told


def test_compiler_that_compiles_nothing(machine: Machine, add_python: AddPython) -> None:
    add_python("3.11.2")
    machine.add_tool("gcc", ":")
    machine.add_tool("g++", "exit 1")
    assert "no working C++ compiler" in refusal(machine)


def test_no_compiler_is_needed_where_nothing_is_left_to_build(machine: Machine) -> None:
    done = """
        STATE=$PWD/state MPI_KIND=wheel MPI_ID=one GPU_OPERATIONS=NCCL PYTHON=true CACHE=$PWD/cache
        mkdir -p $STATE/steps $STATE/tmp
        horovod_key >$STATE/steps/horovod
        hpcbal_key() { echo now; }
        echo now >$STATE/steps/hpcbal
        """
    assert machine.source(f"{done} check_compiler && echo fine").stdout == "fine\n"
    stale = machine.source(f"{done} echo before >$STATE/steps/hpcbal; LOG=/dev/null check_compiler")
    assert stale.returncode == 2
    assert "no working C++ compiler" in stale.stderr, "CUDA is of no use to hpcbal's own loops"
    other_mpi = machine.source(f"{done} MPI_ID=two LOG=/dev/null; check_compiler")
    assert other_mpi.returncode == 2
    assert "Horovod must be built again" in other_mpi.stderr


def test_environment_of_someone_else_is_left_alone(machine: Machine, add_python: AddPython) -> None:
    add_python("3.11.2")
    theirs = machine.clone / ".venv" / "lib" / "theirs"
    theirs.mkdir(parents=True)
    told = refusal(machine)
    assert ".venv is there but is no working environment of Python 3.11 to 3.13" in told
    assert theirs.is_dir()


def test_place_that_cannot_be_written(machine: Machine, add_python: AddPython) -> None:
    add_python("3.11.2")
    (machine.clone / "file").touch()
    told = refusal(machine, HPCBAL_VENV=str(machine.clone / "file" / "venv"))
    assert "cannot be written" in told
    assert "HPCBAL_VENV=DIR" in told


def test_unknown_mpi(machine: Machine, add_python: AddPython) -> None:
    add_python("3.11.2")
    assert "HPCBAL_MPI is 'sight'; allowed are auto, site and wheel." in refusal(machine, HPCBAL_MPI="sight")


def test_site_mpi_that_is_not_there(machine: Machine, add_python: AddPython) -> None:
    add_python("3.11.2")
    told = refusal(machine, HPCBAL_MPI="site")
    assert "mpicc, mpicxx and mpirun are not all on PATH" in told


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ("OSError: [Errno 28] No space left on device", "the disk or the quota is full"),
        ("Failed to establish: NewConnectionError(...)", "package index cannot be reached"),
        ("ERROR: No matching distribution found for numpy==0", "does not hold a package that is needed"),
        ("ERROR: No matching distribution found for torch==9+cpu", "name another with HPCBAL_TORCH="),
        # pip says so where a constraint names PyTorch too, and the index of its builds cannot be reached.
        ("NewConnectionError(...) ERROR: Cannot install torch==9+cpu because", "another with HPCBAL_TORCH="),
        ("fatal error: Python.h: No such file or directory", "the headers of Python are missing"),
    ],
)
def test_failed_step_is_explained(machine: Machine, output: str, told: str) -> None:
    text = f"take_lock; fail() {{ echo '{output}'; return 1; }}; step fetch 1 'Fetching' fail"
    done = machine.source(f"PYTHON_VERSION=3.11.2; {text}")
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert any("'Fetching' failed (status 1)" in line for line in lines)
    assert any(output in line for line in lines)
    assert told in lines[-1]


def test_failure_without_known_cause_names_the_log(machine: Machine) -> None:
    done = machine.source("take_lock; fail() { echo strange; return 7; }; step build 1 'Building' fail")
    assert done.returncode == 1
    assert "| strange" in done.stderr
    assert ".venv/.hpcbal/setup.log" in done.stderr.splitlines()[-1]
