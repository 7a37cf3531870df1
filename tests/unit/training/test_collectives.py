"""`backend.collective: auto` takes what works on all trainers, and says why."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from hpcbal.errors import InputError
from hpcbal.training import collectives
from hpcbal.training.collectives import check_distributed, choose_collective, fault_for

MISSING = "Horovod is not installed"

# A Horovod that fails as one does that was built for another TensorFlow or MPI: with no ImportError.
BROKEN = 'raise OSError("undefined symbol: _ZN10tensorflow8OpKernel\\nand much more")\n'


@pytest.mark.parametrize(
    ("wanted", "faults", "name", "why"),
    [
        ("horovod", [None, None], "horovod", "backend.collective: horovod"),
        ("mpi", [None, None], "mpi", "backend.collective: mpi"),
        ("auto", [None, None], "horovod", "backend.collective: auto; it is installed and works"),
        ("auto", [None, MISSING], "mpi", "backend.collective: auto; Horovod is not installed"),
    ],
)
def test_all_trainers_choose_the_same(wanted: str, faults: list[str | None], name: str, why: str) -> None:
    chosen = choose_collective(wanted, faults)
    assert (chosen.name, chosen.why) == (name, why)


def test_the_choice_is_told_in_one_line() -> None:
    assert str(choose_collective("auto", [MISSING])) == (
        "MPI sums the gradients (backend.collective: auto; Horovod is not installed)"
    )
    assert str(choose_collective("horovod", [None])).startswith("Horovod sums the gradients (")


def test_horovod_is_looked_for_only_where_it_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "fault_of_horovod", lambda: pytest.fail("loaded"))
    assert fault_for("mpi", 4) is None
    assert fault_for("auto", 1) == "there is one slot, and nothing to sum"


def test_without_horovod_auto_goes_on_and_horovod_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert fault_for("auto", 2) == MISSING
    with pytest.raises(
        InputError, match=r"is horovod, but Horovod is not installed here; install it .* mpi$"
    ):
        fault_for("horovod", 2)


def test_a_horovod_that_does_not_load_is_named_with_its_error(tmp_path: Path) -> None:
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text(BROKEN, encoding="utf-8")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "from hpcbal.training.collectives import fault_for; print(fault_for('auto', 2))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == (
        "Horovod cannot be loaded (OSError: undefined symbol: _ZN10tensorflow8OpKernel)\n"
    ), done.stderr


NCCL = ["nccl", "nccl"]


@pytest.mark.parametrize(
    ("wanted", "faults", "distributed", "name", "chosen"),
    [
        ("auto", [MISSING] * 2, NCCL, "mpi", "nccl"),
        ("auto", [None] * 2, NCCL, "horovod", "nccl"),
        ("auto", [None] * 2, ["xccl", "xccl"], "horovod", "xccl"),
        ("auto", [MISSING] * 2, ["gloo", "gloo"], "mpi", None),
        ("auto", [MISSING] * 2, ["nccl", None], "mpi", None),
        ("auto", [MISSING] * 2, ["nccl", "gloo"], "mpi", None),
        ("auto", [None] * 2, [None, None], "horovod", None),
        ("auto", ["one slot"], ["nccl"], "mpi", None),
        ("mpi", [None] * 2, NCCL, "mpi", None),
        ("horovod", [None] * 2, NCCL, "horovod", None),
        ("torch", [None] * 2, ["gloo", "gloo"], "mpi", "gloo"),
        ("torch", [None], NCCL[:1], "mpi", "nccl"),
    ],
)
def test_torch_distributed_sums_on_gpus_and_where_it_is_asked_for(
    wanted: str, faults: list[str | None], distributed: list[str | None], name: str, chosen: str | None
) -> None:
    found = choose_collective(wanted, faults, distributed)
    assert (found.name, found.distributed) == (name, chosen)


def test_the_line_names_both_libraries() -> None:
    assert str(choose_collective("auto", [MISSING] * 2, NCCL)) == (
        "torch.distributed (nccl) sums the gradients of PyTorch, MPI all others (backend.collective: auto; "
        "the slots have GPUs)"
    )


def test_torch_is_refused_where_slots_differ_or_it_has_nothing_to_sum() -> None:
    with pytest.raises(InputError, match=r"different backends of torch\.distributed \(gloo, nccl\): .* cpu$"):
        choose_collective("torch", [None] * 2, ["nccl", "gloo"])
    check_distributed("torch", "gloo", has_torch=True)
    check_distributed("auto", None, has_torch=False)
    with pytest.raises(InputError, match=r"is torch, but no DNN is of PyTorch; .* auto, horovod or mpi$"):
        check_distributed("torch", None, has_torch=False)
    with pytest.raises(InputError, match=r"has no torch\.distributed for its device; install another build"):
        check_distributed("torch", None, has_torch=True)
    assert fault_for("torch", 4) is None
