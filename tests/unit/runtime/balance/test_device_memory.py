"""The memory of the right GPU is read from NVML and TensorFlow; both are made up."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from hpcbal.runtime.balance import gpu
from hpcbal.runtime.balance.gpu import DeviceMemory, most_of_tensorflow

TOTAL = 10 * 2**30


class FakeError(Exception):
    """An error of this library."""


class FakeNvml(ModuleType):
    """Two GPUs of 10 GiB; the second one is fuller."""

    NVMLError = FakeError

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.asked: list[object] = []
        self.fails = False
        self.used = {"first": 40, "second": 96}
        self.num_processes = 1

    def nvmlInit(self) -> None:  # noqa: N802
        if self.fails:
            raise FakeError("Driver Not Loaded")

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return ("first", "second")[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        return {"GPU-aa": "first", "MIG-bb": "second"}[uuid]

    def nvmlDeviceGetHandleByPciBusId(self, bus: str) -> str:  # noqa: N802
        return {"0000:01:00.0": "first", "0000:02:00.0": "second"}[bus]

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:  # noqa: N802
        self.asked.append(handle)
        if self.fails:
            raise FakeError("GPU is lost")
        return SimpleNamespace(total=TOTAL, used=self.used[handle] * TOTAL // 100)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[object]:  # noqa: N802
        if self.fails:
            raise FakeError("GPU is lost")
        return [object()] * self.num_processes


class FakeTensorFlow:
    """The share that `TensorFlowMemory` reads; None without a GPU."""

    share: float | None = None

    def begin(self) -> None:
        self.share = 0.0

    def peak_bytes(self) -> int | None:
        return None if self.share is None else round(self.share * most_of_tensorflow(TOTAL))


@pytest.fixture(autouse=True)
def tensorflow(monkeypatch: pytest.MonkeyPatch) -> FakeTensorFlow:
    fake = FakeTensorFlow()
    monkeypatch.setattr(gpu, "TensorFlowMemory", lambda: fake)
    return fake


@pytest.fixture(autouse=True)
def cuda_counts_as_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


@pytest.mark.parametrize(
    ("gpu", "share"),
    [("1", 0.96), ("0", 0.4), ("MIG-bb", 0.96), ("GPU-aa", 0.4), ("0000:02:00.0", 0.96)],
)
def test_the_gpu_of_the_slot_is_read(nvml: FakeNvml, gpu: str, share: float) -> None:
    assert DeviceMemory(gpu).read(8) == pytest.approx(share)


def test_gpus_that_cuda_numbers_in_another_way_are_not_mixed_up(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    assert DeviceMemory("1").read(8) is None
    assert "CUDA_DEVICE_ORDER is FASTEST_FIRST" in caplog.text
    assert DeviceMemory("MIG-bb").read(8) == pytest.approx(0.96)


def test_it_is_not_read_more_often_than_needed(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 1.0
    monkeypatch.setattr(gpu, "time", SimpleNamespace(monotonic=lambda: clock))
    memory = DeviceMemory("0")
    assert [memory.read(8) for _ in range(9)] == pytest.approx([0.4] * 9)
    assert len(nvml.asked) == 1
    nvml.used["first"], clock = 97, 2.0
    assert memory.read(8) == pytest.approx(0.97)


def test_a_batch_larger_than_all_before_is_not_judged_by_an_old_reading(nvml: FakeNvml) -> None:
    memory = DeviceMemory("0")
    assert memory.read(8) == pytest.approx(0.4)
    nvml.used["first"] = 90
    assert memory.read(8) == pytest.approx(0.4)
    assert memory.read(9) == pytest.approx(0.9)


@pytest.mark.parametrize(("num_processes", "share"), [(1, 0.3), (2, 0.96)])
def test_a_rank_alone_on_a_gpu_reports_what_it_needs_and_not_what_it_once_took(
    nvml: FakeNvml, tensorflow: FakeTensorFlow, num_processes: int, share: float
) -> None:
    tensorflow.share, nvml.num_processes = 0.3, num_processes
    assert DeviceMemory("1").read(8) == pytest.approx(share)


def test_a_round_begins_with_a_new_peak_and_a_new_reading(nvml: FakeNvml, tensorflow: FakeTensorFlow) -> None:
    tensorflow.share = 0.9
    memory = DeviceMemory("0")
    assert memory.read(256) == pytest.approx(0.9)
    memory.begin(0.0)
    assert memory.read(16) == pytest.approx(0.0)
    tensorflow.share = 0.2
    assert memory.read(32) == pytest.approx(0.2), "larger than all of this round, if not of the one before"


def test_a_group_that_continues_needs_no_less_than_before(nvml: FakeNvml, tensorflow: FakeTensorFlow) -> None:
    memory = DeviceMemory("0")
    memory.begin(0.6)
    tensorflow.share = 0.2
    assert memory.read(16) == pytest.approx(0.6)
    tensorflow.share = 0.7
    assert memory.read(32) == memory.needed == pytest.approx(0.7)


def test_others_that_leave_the_gpu_are_forgotten(
    nvml: FakeNvml, tensorflow: FakeTensorFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "INTERVAL_S", 0.0)
    tensorflow.share = 0.3
    memory = DeviceMemory("1")
    reported = []
    for nvml.num_processes in (1, 2, 1):
        reported.append(memory.read(8))
    assert reported == pytest.approx([0.3, 0.96, 0.3])
    assert memory.needed == pytest.approx(0.3)


def test_without_gpus_nothing_is_reported(nvml: FakeNvml, caplog: pytest.LogCaptureFixture) -> None:
    assert DeviceMemory(None).read(8) is None
    assert caplog.text == ""


def test_without_the_library_nothing_is_measured_and_it_says_what_to_install(
    tensorflow: FakeTensorFlow, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    tensorflow.share = 0.3
    assert DeviceMemory("0").read(8) is None
    assert "hpcbal[balance]" in caplog.text


@pytest.mark.parametrize(("total_gib", "reserve_mib"), [(1, 225), (2, 1536), (16, 1536)])
def test_tensorflow_leaves_some_memory_to_others(total_gib: int, reserve_mib: int) -> None:
    assert most_of_tensorflow(total_gib * 2**30) == total_gib * 2**30 - reserve_mib * 2**20


@pytest.mark.parametrize("share", [None, 0.3])
def test_a_driver_that_refuses_is_logged_once_and_nothing_is_measured(
    nvml: FakeNvml,
    tensorflow: FakeTensorFlow,
    share: float | None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu, "INTERVAL_S", 0.0)
    nvml.fails, nvml.num_processes, tensorflow.share = True, 2, share
    assert DeviceMemory("0").read(8) is None
    assert "Driver Not Loaded" in caplog.text
    nvml.fails = False
    memory = DeviceMemory("0")
    assert memory.read(8) == pytest.approx(0.4)
    nvml.fails = True
    assert [memory.read(8) for _ in range(3)] == [None] * 3
    assert caplog.text.count("GPU is lost") == 1
