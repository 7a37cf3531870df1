"""Facts, made up, become ok, warning or error; nothing is asked."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbal.cluster.cgroup import Cores, Quota
from hpcbal.cluster.started import BatchJob, Launcher
from hpcbal.doctor import Finding, checks, merged, text_of
from hpcbal.doctor.child import Answer

OPEN_MPI_4 = "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n"
HYDRA = "HYDRA build details:\n    Version:                                 4.0.2\n"
INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.10 Build 20230619\n"
GIB, MIB = 2**30, 2**20


@pytest.mark.parametrize(
    ("said", "library", "level", "words"),
    [
        (OPEN_MPI_4, "Open MPI 4.1.6", None, ""),
        (OPEN_MPI_4, "Open MPI 5.0.11", "warning", "of Open MPI 4.1.4, mpi4py uses Open MPI 5.0.11"),
        ("prterun (PRRTE) 3.0.5", "Open MPI 5.0.11", "warning", "Open MPI 3.0.5"),
        ("mpirun (Open MPI) 5.0.3", "Open MPI 5.0.11", None, ""),
        (HYDRA, "Open MPI 5.0.11", "error", "of MPICH 4.0.2, but mpi4py uses Open MPI 5.0.11"),
        (OPEN_MPI_4, "MPICH 4.1.0", "error", "each process would be alone"),
        (INTEL, "MPICH 4.1.0", "error", "of Intel MPI 2021.10"),
        (INTEL, "Intel MPI 2021.10.0", None, ""),
        ("something else 1.0", "Open MPI 5.0.11", None, ""),
        ("", "Open MPI 5.0.11", None, ""),
        (None, "Open MPI 5.0.11", None, ""),
    ],
)
def test_a_launcher_of_another_mpi_is_named(
    said: str | None, library: str, level: str | None, words: str
) -> None:
    found = checks.launcher_of_library(said, library, "mpirun")
    assert (None if found is None else found.level) == level
    assert words in ("" if found is None else found.text)


@pytest.mark.parametrize(
    ("facts", "level"),
    [
        ({"free_bytes": 8 * GIB, "total_bytes": 16 * GIB, "free_inodes": -1}, "ok"),
        (
            {"free_bytes": 64 * MIB, "total_bytes": 64 * MIB, "free_inodes": 900},
            "warning",
        ),  # Docker's default
        ({"free_bytes": 4096, "total_bytes": 64 * MIB, "free_inodes": 900}, "error"),
        ({"free_bytes": 8 * GIB, "total_bytes": 16 * GIB, "free_inodes": 3}, "error"),
        (None, "error"),
    ],
)
def test_a_small_or_full_shared_memory_is_named(facts: dict[str, int] | None, level: str) -> None:
    found = checks.shared_memory("/dev/shm", facts)
    assert (found.level, bool(found.do)) == (level, level != "ok")


def files(**other: Any) -> Answer:
    facts = {"fault": "", "kind": "lustre", "free_bytes": 9 * GIB, "free_inodes": -1, "seconds": 0.01}
    return Answer(facts | {"locks": True, "replaces": True, "appends": True} | other)


@pytest.mark.parametrize(
    ("answer", "levels", "words"),
    [
        (files(), ["ok"], "9.0 GiB free (lustre)"),
        (files(fault="Read-only file system (x)"), ["error"], "Read-only file system"),
        (Answer(None, "no answer within 20 s"), ["error"], "no answer within 20 s"),
        (files(free_bytes=MIB), ["error"], "1 MiB free"),
        (files(free_bytes=GIB / 2), ["warning"], "512 MiB free"),
        (files(free_inodes=3), ["warning"], "3 inodes"),
        (files(locks=False), ["warning"], "cannot be locked"),
        (files(replaces=False, appends=False), ["error", "error"], "cannot be replaced"),
        (files(seconds=3.0), ["warning"], "a small file takes 3.0 s"),
    ],
)
def test_the_file_system_of_the_output_is_judged(answer: Answer, levels: list[str], words: str) -> None:
    found = checks.output("runs/x", answer)
    assert [finding.level for finding in found] == levels
    assert words in found[0].text


def test_a_file_of_the_first_node_must_be_seen_and_locked_on_others() -> None:
    unseen = checks.shared_output("o", is_seen=False, is_locked=True)
    unlocked = checks.shared_output("o", is_seen=True, is_locked=False)
    assert (unseen and unseen.level, unlocked and unlocked.level) == ("error", "warning")
    assert checks.shared_output("o", is_seen=True, is_locked=True) is None


@pytest.mark.parametrize(
    ("answer", "granted", "level", "words"),
    [
        (
            Answer({"version": "2.18", "devices": 4, "built": True}),
            "SLURM_JOB_GPUS=0-3",
            "ok",
            "2.18, 4 GPUs",
        ),
        (Answer({"version": "2.18", "devices": 0, "built": False}), None, "ok", "2.18, 0 GPUs"),
        (Answer({"version": "2.18", "devices": 0, "built": False}), "SLURM_JOB_GPUS=0", "error", "sees none"),
        (Answer(None, "ImportError: libcudart.so.12"), None, "error", "libcudart.so.12"),
        (Answer(None, "it died of signal SIGILL"), None, "error", "SIGILL"),
    ],
)
def test_a_framework_must_load_and_see_its_devices(
    answer: Answer, granted: str | None, level: str, words: str
) -> None:
    found = checks.framework("tensorflow", answer, granted)
    assert (found.check, found.level) == ("TensorFlow", level)
    assert words in found.text
    assert bool(found.do) == (level != "ok")


def test_one_framework_that_sees_the_devices_is_enough() -> None:
    none = Answer({"version": "2.18", "devices": 0, "built": False})
    assert checks.framework("tensorflow", none, "SLURM_JOB_GPUS=0", another_sees=True).level == "warning"


def test_ranks_that_a_launcher_has_bound_to_one_core_are_named() -> None:
    bound = [Cores(frozenset({0}))] * 5
    assert checks.cores(bound, 64, None).level == "warning"
    assert checks.cores(bound, 1, None).level == "ok"  # there are no others
    assert checks.cores(bound[:4], 64, None).level == "ok"
    limited = [Cores(frozenset(range(8)), Quota("a", 1.0))] * 5
    found = checks.cores(limited, 64, "2")
    assert (found.level, found.text) == ("warning", "1 of 64 for 5 ranks, OMP_NUM_THREADS=2")


@pytest.mark.parametrize(("omp", "level"), [("4", "ok"), ("4,2", "ok"), ("0", "warning"), ("abc", "warning")])
def test_a_number_of_threads_that_the_run_ignores_is_named(omp: str, level: str) -> None:
    found = checks.cores([Cores(frozenset({0}))], 1, omp)
    assert (found.level, "the run ignores it" in found.do) == (level, level == "warning")


def test_a_node_that_is_a_fifth_slower_than_the_median_is_named() -> None:
    nodes = [("n1", 1.0), ("n2", 1.21), ("n3", 0.99), ("n4", 1.0)]
    (found,) = checks.speeds(nodes)
    assert (found.level, found.hosts, found.text) == (
        "warning",
        ("n2",),
        "21 % slower than the median of 4 nodes",
    )
    (found,) = checks.speeds([("n1", 1.0), ("n2", 3.0)])  # of two nodes, their mean is the measure
    assert (found.hosts, found.text) == (("n2",), "50 % slower than the median of 2 nodes")
    assert [finding.level for finding in checks.speeds([("n1", 1.0), ("n2", 1.3)])] == ["ok"]
    assert checks.speeds([("n1", 1.0)]) == []


def test_clocks_that_differ_by_more_than_a_second_are_named() -> None:
    found = checks.clocks({"n2": 0.004, "n3": -7.0, "n4": 2.0})
    assert [(finding.level, finding.hosts, finding.text) for finding in found] == [
        ("warning", ("n3",), "7.0 s behind"),
        ("warning", ("n4",), "2.0 s ahead"),
    ]
    assert [finding.level for finding in checks.clocks({"n2": 0.004})] == ["ok"]
    assert checks.clocks({}) == []


def test_sums_threads_and_windows_are_judged() -> None:
    assert checks.collectives(4, MIB, 0.001, is_right=True).level == "ok"
    assert checks.collectives(4, MIB, 0.9, is_right=True).level == "warning"
    assert checks.collectives(4, MIB, 0.001, is_right=False).level == "error"
    assert [checks.mpi("M 1.0", level, 2, 1).level for level in ("multiple", "funneled")] == ["ok", "warning"]
    assert [checks.mpi("M 1.0", "multiple", 4, 4, nodes).level for nodes in (4, 1)] == ["ok", "warning"]
    assert [checks.window(2, launched).level for launched in (None, 2, 4)] == ["ok", "ok", "warning"]


def test_the_job_its_end_and_the_container_are_shown() -> None:
    found = checks.allocation(BatchJob("Slurm", "13_7", "7", components=2), Launcher("PMIx", 0, 2), 600.0)
    assert found.text == "Slurm job 13_7, task 7 of an array, 2 components, 10 minutes left, started by PMIx"
    assert checks.allocation(BatchJob("PBS", "3"), None, 60.0).level == "warning"
    assert checks.container(None, "Open MPI 5.0.11", None) == []
    (found,) = checks.container("Apptainer container x.sif", "Open MPI 5.0.11", Launcher("PMIx", 0, 2))
    assert found.text == "Apptainer container x.sif with Open MPI 5.0.11, started by PMIx"


def test_findings_of_many_nodes_are_merged_and_shown() -> None:
    fine, small = Finding("memory", "ok", "much"), Finding("memory", "warning", "little", "give more")
    found = merged([fine.on("n1"), Finding("sum", "error", "wrong"), small.on("n2"), fine.on("n3")])
    assert [(finding.check, finding.hosts) for finding in found] == [
        ("memory", ("n1", "n3")),
        ("memory", ("n2",)),
        ("sum", ()),
    ]
    assert text_of(found, 3).splitlines() == [
        "ok       memory  much (n1, n3)",
        "warning  memory  little (n2)",
        "                 -> give more",
        "error    sum     wrong",
        "1 ok, 1 warning, 1 error",
    ]
    assert small.on("n2").sentence() == "memory: n2: little; give more"
    many = merged(fine.on(f"n{number}") for number in range(9))
    assert text_of(many, 10).splitlines()[0] == "ok       memory  much (9 nodes (n0, ...))"
