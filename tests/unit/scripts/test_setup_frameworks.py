"""The set-up with and without Horovod, and for one framework; a stand-in of pip notes what it is asked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Machine

CHOOSE = """
take_lock
PYTHON_VERSION=${VERSION:-3.11.2} NVIDIA_DRIVER=/none
choose_frameworks
choose_device
remember_choices
echo "$FRAMEWORKS|$TENSORFLOW|$TORCH|$WITH_HOROVOD|${TENSORFLOW_CONSTRAINTS##*/}"
"""
BOTH = "tensorflow torch"
OLD, NEW = "tensorflow-cpu==2.18.1", "tensorflow-cpu==2.21.0"
TORCH = "torch==2.13.0+cpu"
WITH_HOROVOD = f"{BOTH}|{OLD}|{TORCH}|yes|constraints-2.18.1.txt\n"
WITHOUT = f"{BOTH}|{NEW}|{TORCH}|no|constraints-2.21.0.txt\n"


def chosen(machine: Machine, **environ: str) -> str:
    done = machine.source(CHOOSE, **environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_by_default_both_frameworks_come_with_horovod(machine: Machine) -> None:
    assert chosen(machine) == WITH_HOROVOD


def test_frameworks_may_stand_apart(machine: Machine) -> None:
    assert chosen(machine, HPCBAL_FRAMEWORKS=" tensorflow\ttorch ") == WITH_HOROVOD


def test_without_horovod_tensorflow_is_a_current_one(machine: Machine) -> None:
    assert chosen(machine, HPCBAL_HOROVOD="no") == WITHOUT


def test_later_set_ups_keep_a_choice_until_another_is_made(machine: Machine) -> None:
    chosen(machine, HPCBAL_HOROVOD="no")
    assert chosen(machine) == WITHOUT
    chosen(machine, HPCBAL_FRAMEWORKS="torch")
    assert chosen(machine).startswith("torch|")
    assert chosen(machine, HPCBAL_FRAMEWORKS=BOTH, HPCBAL_HOROVOD="auto") == WITH_HOROVOD


@pytest.mark.parametrize("version", ["3.12.1", "3.13.0"])
def test_other_pythons_go_without_horovod_unless_it_is_asked_for(machine: Machine, version: str) -> None:
    assert chosen(machine, VERSION=version) == WITHOUT
    assert chosen(machine, VERSION=version, HPCBAL_HOROVOD="yes") == WITH_HOROVOD


@pytest.mark.parametrize(
    ("tensorflow", "horovod"),
    [
        ("tensorflow-cpu==2.17.1", "yes"),
        ("tensorflow~=2.16.0", "yes"),
        ("/wheels/tensorflow-2.18.0-cp311-cp311-linux_x86_64.whl", "yes"),
        ("tensorflow-cpu==2.19.1", "no"),
        ("tensorflow-cpu>=2.16", "no"),
        ("tf-nightly", "no"),
    ],
)
def test_horovod_is_built_for_the_tensorflow_that_it_builds_with(
    machine: Machine, tensorflow: str, horovod: str
) -> None:
    told = chosen(machine, HPCBAL_TENSORFLOW=tensorflow)
    assert told == f"{BOTH}|{tensorflow}|{TORCH}|{horovod}|null\n"


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"HPCBAL_FRAMEWORKS": "tensorflow jax"}, "allowed are tensorflow, torch and 'tensorflow torch'"),
        ({"HPCBAL_FRAMEWORKS": " "}, "HPCBAL_FRAMEWORKS is ' '; allowed are"),
        ({"HPCBAL_HOROVOD": "false"}, "HPCBAL_HOROVOD is 'false'; allowed are auto, yes and no."),
        (
            {"HPCBAL_HOROVOD": "yes", "HPCBAL_FRAMEWORKS": "torch"},
            "HPCBAL_HOROVOD is yes, but it is built for",
        ),
        (
            {"HPCBAL_HOROVOD": "yes", "HPCBAL_TENSORFLOW": "tensorflow-cpu==2.21.0"},
            "builds with TensorFlow 2.16 to 2.18, and HPCBAL_TENSORFLOW is tensorflow-cpu==2.21.0",
        ),
    ],
)
def test_contradictions_are_refused(machine: Machine, environ: dict[str, str], message: str) -> None:
    done = machine.source(CHOOSE, **environ)
    assert done.returncode == 2
    assert message in done.stderr


def test_gpus_without_horovod_need_no_compiler_of_cuda(machine: Machine) -> None:
    assert chosen(machine, HPCBAL_DEVICE="gpu", HPCBAL_HOROVOD="no").split("|")[1:4] == [
        "tensorflow[and-cuda]==2.21.0",
        "torch==2.13.0",
        "no",
    ]


def installed(machine: Machine, steps: str, python: str = 'echo "$*" >>calls', **environ: str) -> list[str]:
    """Arguments of the calls of Python while these steps of a set-up are done; no old ones."""
    program = machine.clone / ".venv" / "bin" / "python"
    program.parent.mkdir(parents=True, exist_ok=True)
    machine.add_tool("python", python).rename(program)
    calls = machine.clone / "calls"
    calls.write_text("")
    done = machine.source(
        f"PYTHON_VERSION=3.11.2 NVIDIA_DRIVER=/none\nchoose_frameworks\nchoose_device\n{steps}", **environ
    )
    assert done.returncode == 0, done.stderr
    return [
        re.sub(rf"{re.escape(str(machine.clone))}\S*/", "", line) for line in calls.read_text().splitlines()
    ]


def test_what_was_left_out_is_removed(machine: Machine) -> None:
    stamp = machine.clone / ".venv/.hpcbal/steps/horovod"
    stamp.parent.mkdir(parents=True)
    stamp.touch()
    assert installed(machine, "install_packages", HPCBAL_FRAMEWORKS="torch")[:-1] == [
        "-m pip uninstall --yes tensorflow",
        "-m pip uninstall --yes tensorflow-cpu",
        "-m pip uninstall --yes horovod",
    ]
    assert not stamp.exists()
    assert installed(machine, "install_packages")[-1].endswith(f" -r run.txt -r horovod.txt {OLD}")


NO_TORCH = 'echo "$*" >>calls; [[ $1 != -c ]]'


def test_pytorch_is_the_build_for_cpus_and_never_another_by_accident(machine: Machine) -> None:
    assert installed(machine, "install_torch", NO_TORCH)[-1].endswith(f" {TORCH}")
    refusing = f"{NO_TORCH} && [[ $* == *--extra-index-url* || $1 == -c ]]"
    _, first, second = installed(machine, "install_torch", refusing)
    assert first.endswith(f" {TORCH}")
    assert second.endswith(f" --extra-index-url https://download.pytorch.org/whl/cpu {TORCH}")


def test_a_pytorch_that_is_there_stays_unless_another_is_named(machine: Machine) -> None:
    (asked,) = installed(machine, "install_torch")
    assert "pip" not in asked
    (named,) = installed(machine, "install_torch", HPCBAL_TORCH="torch==2.14.1")
    assert named.endswith(" torch==2.14.1")


def test_the_tests_need_both_frameworks(machine: Machine) -> None:
    python = machine.bin / "python3"
    machine.add_tool("python3", f'echo "3.11.2 {python}"')
    done = machine.source("set_up dev", HPCBAL_FRAMEWORKS="tensorflow")
    assert done.returncode == 2
    assert "the tests need both frameworks, and HPCBAL_FRAMEWORKS is tensorflow" in done.stderr


def test_the_last_lines_say_what_sums_gradients(machine: Machine) -> None:
    text = f"{CHOOSE}MPI_BIN=/none MPI_ID=it MPI_KIND=site; explain_choice"
    assert "Horovod: horovod==0.28.1; to do without it: HPCBAL_HOROVOD=no" in machine.source(text).stderr
    told = machine.source(text, HPCBAL_HOROVOD="no", HPCBAL_FRAMEWORKS="tensorflow").stderr
    assert "Horovod: none (HPCBAL_HOROVOD is no). MPI sums gradients." in told
    assert "PyTorch: none (HPCBAL_FRAMEWORKS is tensorflow)" in told


def test_each_tensorflow_has_its_constraints() -> None:
    folder = Path(__file__).parents[3] / "scripts" / "requirements"
    script = (folder.parent / "setup.sh").read_text()
    versions = re.findall(r"TENSORFLOW_WITH(?:_HOROVOD|OUT)=([\d.]+)", script)
    assert len(versions) == 2
    common = {line.split("==")[0] for line in (folder / "constraints.txt").read_text().splitlines()}
    for version in versions:
        own = (folder / f"constraints-{version}.txt").read_text().splitlines()[1:]
        assert all(re.fullmatch(r"[\w-]+==[\w.]+", line) for line in own)
        assert not common & {line.split("==")[0] for line in own}
