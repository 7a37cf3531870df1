"""Trainer groups over real MPI ranks: all collectives pass the same cases, with frameworks and emulated."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from installed import COLLECTIVES_HERE

pytestmark = pytest.mark.mpi

CASES = (
    "replay",
    "balanced",
    "consulting",
    "failures",
    "not_a_number",
    "suspend",
    "wrong_total",
    "own_groups",
    "lacking",
    "one_start",
    "agreement",
)
SUMS = ("replay", "failures", "not_a_number", "suspend", "lacking")
"""Those that depend on the kind of arrays that are summed, and on where they lie."""

TESTED = (*COLLECTIVES_HERE, "packed")
"""`packed` is MPI with a buffer where the tensors lie, as on a GPU; arrays that lie elsewhere are copied."""

RunMpi = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def passed_with_tensorflow(mpi_run: RunMpi) -> set[str]:
    """One start of TensorFlow on all ranks serves both collectives, both backends and synchronised layers."""
    return passed(mpi_run(4, "training_cases.py", ",".join(TESTED), "tensorflow,emulated", timeout_s=280))


@pytest.fixture(scope="module")
def passed_with_torch(mpi_run: RunMpi) -> set[str]:
    return passed(mpi_run(4, "training_cases.py", "torch,mpi", "torch,emulated", timeout_s=200))


def passed(run: subprocess.CompletedProcess[str]) -> set[str]:
    lines = {line.removeprefix("passed ") for line in run.stdout.splitlines() if line.startswith("passed ")}
    if run.returncode:
        lines.add(f"exit code {run.returncode}\n{run.stderr}")  # shown by the assertion about missing lines
    return lines


@pytest.mark.parametrize(
    ("collective", "case"),
    [
        *((collective, case) for collective in COLLECTIVES_HERE for case in (*CASES, "batch_norm")),
        *(("packed", case) for case in (*SUMS, "batch_norm")),
    ],
)
def test_tensorflow_groups(passed_with_tensorflow: set[str], collective: str, case: str) -> None:
    assert f"{collective} tensorflow {case}" in passed_with_tensorflow


@pytest.mark.parametrize(
    ("collective", "case"),
    [(collective, case) for collective in TESTED for case in (CASES if collective == "mpi" else SUMS)],
)
def test_emulated_groups_beside_tensorflow(
    passed_with_tensorflow: set[str], collective: str, case: str
) -> None:
    assert f"{collective} emulated {case}" in passed_with_tensorflow


@pytest.mark.parametrize(
    ("backend", "collective", "case"),
    [
        *(("torch", "torch", case) for case in CASES),
        *((*pair, case) for pair in (("torch", "mpi"), ("emulated", "torch")) for case in SUMS),
    ],
)
def test_torch_groups(passed_with_torch: set[str], backend: str, collective: str, case: str) -> None:
    """All that is not of PyTorch goes through MPI, beside torch.distributed too."""
    assert f"{collective} {backend} {case}" in passed_with_torch


PROCESS_GROUP_CASES = (
    "like_mpi",
    "one_group_at_a_time",
    "memory_ends",
    "made_by_the_user",
    "broken",
)


@pytest.mark.parametrize("case", PROCESS_GROUP_CASES)
def test_process_groups(passed_with_torch: set[str], case: str) -> None:
    assert f"process groups {case}" in passed_with_torch


SYNCHRONISED_CASES = (
    "replay",
    "failures",
    "failing_traces",
    "broken_updates",
    "not_a_number",
    "late",
    "suspend",
)


@pytest.mark.parametrize("case", SYNCHRONISED_CASES)
@pytest.mark.parametrize("collective", COLLECTIVES_HERE)
def test_synchronised_layers(passed_with_tensorflow: set[str], collective: str, case: str) -> None:
    assert f"{collective} synchronised {case}" in passed_with_tensorflow
