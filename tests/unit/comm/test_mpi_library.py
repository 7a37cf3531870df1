"""Which MPI a process has loaded, and what that says about memory of GPUs."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcbal.comm import mpi
from hpcbal.comm.mpi import loaded_libraries, takes_gpu_memory

MAPS = """\
7f1a00000000-7f1a00020000 r-xp 00000000 08:01 11 /opt/env/lib/libmpi.so.40.40.8
7f1a00020000-7f1a00030000 r--p 00020000 08:01 11 /opt/env/lib/libmpi.so.40.40.8
7f1a00040000-7f1a00050000 r-xp 00000000 08:01 12 /opt/env/lib/libmpi_mpifh.so.40
7f1a00060000-7f1a00070000 rw-p 00000000 00:00 0 [heap]
"""


def test_each_library_is_found_once(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(MAPS, encoding="utf-8")
    assert loaded_libraries(maps) == ["/opt/env/lib/libmpi.so.40.40.8"]
    maps.write_text(f"{MAPS}1-2 r-xp 0 08:01 13 /usr/lib/libmpi.so.12\n", encoding="utf-8")
    assert loaded_libraries(maps) == ["/opt/env/lib/libmpi.so.40.40.8", "/usr/lib/libmpi.so.12"]


def test_without_the_table_nothing_is_known(tmp_path: Path) -> None:
    assert loaded_libraries(tmp_path / "none") == []


class World:
    """A communicator whose info object holds these kinds of memory."""

    def __init__(self, kinds: str | None) -> None:
        self._kinds = kinds

    def Get_info(self) -> Any:  # noqa: N802
        return SimpleNamespace(Get=lambda name: self._kinds, Free=lambda: None)


@pytest.mark.parametrize(
    ("kinds", "functions", "expected"),
    [
        (None, {}, False),
        ("system,mpi", {}, False),
        ("system,mpi,cuda:device", {}, True),
        ("system, rocm", {}, True),
        (None, {"MPIX_Query_cuda_support": 0}, False),
        (None, {"MPIX_Query_cuda_support": 0, "MPIX_Query_rocm_support": 1}, True),
    ],
)
def test_mpi_says_whether_it_takes_memory_of_gpus(
    monkeypatch: pytest.MonkeyPatch, kinds: str | None, functions: dict[str, int], expected: bool
) -> None:
    class Query:
        def __init__(self, answer: int) -> None:
            self._answer = answer

        def __call__(self) -> int:
            return self._answer

    library = SimpleNamespace(**{name: Query(answer) for name, answer in functions.items()})
    monkeypatch.setattr(mpi, "MPI", SimpleNamespace(COMM_WORLD=World(kinds)))
    monkeypatch.setattr(mpi, "loaded_libraries", lambda: ["/lib/libmpi.so.40"])
    monkeypatch.setattr(ctypes, "CDLL", lambda path: library)
    assert takes_gpu_memory() is expected
