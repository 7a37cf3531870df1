"""A rank of PyTorch takes its GPU by number; the GPUs are made up, because none was at hand."""

from __future__ import annotations

import pytest
import torch

from hpcbal.cluster.cgroup import Cores
from hpcbal.errors import ClusterError
from hpcbal.training.devices import LocalSlots
from hpcbal.training.torch.setup import setup_torch

ALL = (("GPU-a", "GPU-b"),) * 2
CORES = (Cores(frozenset({0, 1})),) * 2


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Two GPUs of each kind; the kind and number of those that were chosen."""
    chosen: list[tuple[str, int]] = []
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    monkeypatch.setattr(torch, "set_num_interop_threads", lambda number: None)
    for name, devices in (("cuda", torch.cuda), ("xpu", torch.xpu)):
        monkeypatch.setattr(devices, "is_available", lambda: True)
        monkeypatch.setattr(devices, "device_count", lambda: 2)
        monkeypatch.setattr(devices, "set_device", lambda index, name=name: chosen.append((name, index)))
        monkeypatch.setattr(devices, "get_device_name", lambda index, name=name: f"{name} {index}")
    return chosen


def test_a_slot_takes_the_gpu_of_its_number(gpus: list[tuple[str, int]]) -> None:
    assert setup_torch(LocalSlots(1, CORES, seen=ALL)) == ("cuda 1", torch.device("cuda", 1))
    assert gpus == [("cuda", 1)]


def test_gpus_of_intel_are_used_where_there_are_no_others(
    gpus: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert setup_torch(LocalSlots(0, CORES)) == ("xpu 0", torch.device("xpu", 0))
    assert gpus == [("xpu", 0)]


def test_two_slots_on_one_gpu_are_refused(gpus: list[tuple[str, int]]) -> None:
    with pytest.raises(ClusterError, match="slots 0 and 1 would use the same device"):
        setup_torch(LocalSlots(1, CORES, seen=(("GPU-a",),) * 2))
    assert gpus == []


def test_cores_are_used_if_the_file_says_so(gpus: list[tuple[str, int]]) -> None:
    assert setup_torch(LocalSlots(0, CORES, "cpu"))[1] == torch.device("cpu")
    assert gpus == []
