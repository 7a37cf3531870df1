"""A rank of TensorFlow shows itself its own GPU only; the GPUs are made up, because none was at hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hpcbal.cluster.cgroup import Cores
from hpcbal.errors import ClusterError
from hpcbal.training.devices import LocalSlots
from hpcbal.training.keras import tensorflow_backend

CORES = (Cores(frozenset({0, 1})),) * 2


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """TensorFlow with two GPUs; what it was told to show."""
    told: list[Any] = []
    config = SimpleNamespace(
        threading=SimpleNamespace(
            set_intra_op_parallelism_threads=lambda number: None,
            set_inter_op_parallelism_threads=lambda number: None,
        ),
        list_physical_devices=lambda kind: ["first", "second"],
        set_visible_devices=lambda gpu, kind: told.append(gpu),
        experimental=SimpleNamespace(
            set_memory_growth=lambda gpu, grows: None,
            get_device_details=lambda gpu: {"device_name": f"the {gpu}"},
        ),
    )
    test = SimpleNamespace(is_built_with_gpu_support=lambda: True)
    monkeypatch.setattr(tensorflow_backend, "tf", SimpleNamespace(config=config, test=test))
    return told


def test_a_slot_shows_itself_the_gpu_of_its_number(shown: list[Any]) -> None:
    slots = LocalSlots(1, CORES, seen=(("GPU-a", "GPU-b"),) * 2)
    assert tensorflow_backend.setup_tensorflow(slots) == "the second"
    assert shown == ["second"]


def test_two_slots_on_one_gpu_are_refused(shown: list[Any]) -> None:
    with pytest.raises(ClusterError, match="slots 0 and 1 would use the same device"):
        tensorflow_backend.setup_tensorflow(LocalSlots(0, CORES[:1] * 2, seen=(("0",), ("0",))))
    assert shown == []


def test_cores_are_used_if_the_file_says_so(shown: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert tensorflow_backend.setup_tensorflow(LocalSlots(0, CORES, "cpu")) == "cpu, 1 thread"
    assert shown == [[]]
