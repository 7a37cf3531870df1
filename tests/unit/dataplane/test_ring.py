"""A ring is made only where it fits into the memory that the job may use."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from hpcbal.cluster.cgroup import ControlGroup
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.dataplane import shared_memory
from hpcbal.dataplane.ring import NodeRing
from hpcbal.dataplane.shared_memory import SharedMemory
from hpcbal.dataplane.stream import StreamSpec
from hpcbal.errors import InputError

SPEC = StreamSpec(9000, 9000, 100, SampleSpec.of((32,), "uint8"), LabelSpec((), "int64"), ring_bytes=2**18)


class OneRank:
    """The communicator of a node's only rank."""

    rank, size = 0, 1

    def bcast(self, value: Any) -> Any:
        return value

    def Barrier(self) -> None:  # noqa: N802 - as MPI has it
        """Wait for nobody."""


def test_a_ring_has_all_its_memory_when_the_run_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later somebody may have filled it, and a write to shared memory that is not there kills the rank."""
    path = tmp_path / "window"
    path.touch()
    os.truncate(path, 2 * SPEC.ring_bytes)
    with open(path, "r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
    assert path.stat().st_blocks == 0
    memory = np.frombuffer(mapped, np.uint8)
    shared = SharedMemory(memory, lambda: None, lambda offset, number: 0, lambda: None)
    monkeypatch.setattr(SharedMemory, "create", lambda *_: shared)
    ring = NodeRing.create(cast(Any, OneRank()), SPEC, 1, 1)
    mapped.flush()
    assert path.stat().st_blocks * 512 >= ring.num_bytes
    ring.close()


def test_a_ring_beyond_the_memory_limit_of_the_job_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = tmp_path / "memory.current"
    used.write_text("900000")
    monkeypatch.setattr(shared_memory, "own_control_group", lambda: ControlGroup(1_000_000, used))
    expected = r"ring of this node, \d+ bytes: .* may use 1000000 bytes, 100000 of them are free; lower"
    with pytest.raises(InputError, match=expected):
        NodeRing.create(cast(Any, OneRank()), SPEC, 1, 1)
