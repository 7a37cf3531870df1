"""How busy the right GPU is, from NVML where something has loaded it; the library is made up."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from hpcbal.runtime.balance.gpu import NO_DEVICE, USE_INTERVAL_S, DeviceUse


class FakeError(Exception):
    """An error of this library."""


class FakeNvml(ModuleType):
    """Two GPUs; the first one runs kernels for 80 % of the time."""

    NVMLError = FakeError

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.fails = ""
        self.percent = {0: 80, 1: 10}
        self.num_reads = 0

    def nvmlInit(self) -> None:  # noqa: N802
        if self.fails == "init":
            raise FakeError("Driver Not Loaded")

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        return {"GPU-aa": 0, "MIG-bb": 1}[uuid]

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:  # noqa: N802
        self.num_reads += 1
        if self.fails == "read":
            raise FakeError("Not Supported")
        return SimpleNamespace(gpu=self.percent[handle])


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


@pytest.mark.parametrize(("gpu", "share"), [("0", 0.8), ("1", 0.1), ("GPU-aa", 0.8), ("MIG-bb", 0.1)])
def test_the_gpu_of_the_slot_is_sampled(nvml: FakeNvml, gpu: str, share: float) -> None:
    use = DeviceUse(gpu)
    use.look()
    assert use.take() == pytest.approx(share)
    assert use.take() is None


def test_samples_are_rare_and_averaged_since_the_last_call(nvml: FakeNvml) -> None:
    clock = Clock()
    use = DeviceUse("0", clock)
    for percent in (80, 40, 0):
        nvml.percent[0] = percent
        for _ in range(100):
            use.look()
        clock.now_s += USE_INTERVAL_S
    assert nvml.num_reads == 3
    assert use.take() == pytest.approx(0.4)


def test_a_library_that_nobody_has_loaded_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml
) -> None:
    monkeypatch.delitem(sys.modules, "pynvml")
    clock = Clock()
    use = DeviceUse("0", clock)
    use.look()
    assert (use.take(), "pynvml" in sys.modules) == (None, False)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)  # PyTorch is imported later
    clock.now_s += USE_INTERVAL_S
    use.look()
    assert use.take() == pytest.approx(0.8)


@pytest.mark.parametrize("fails", ["init", "read"])
def test_after_a_refusal_it_does_not_ask_again(
    nvml: FakeNvml, fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    nvml.fails, clock = fails, Clock()
    use = DeviceUse("0", clock)
    with caplog.at_level("INFO"):
        for _ in range(3):
            use.look()
            clock.now_s += USE_INTERVAL_S
    assert use.take() is None
    assert caplog.text.count("cannot be measured") == 1


def test_gpus_that_cuda_numbers_in_another_way_are_not_mixed_up(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    use = DeviceUse("1")
    use.look()
    assert (use.take(), nvml.num_reads) == (None, 0)


def test_without_a_gpu_nothing_is_asked(nvml: FakeNvml) -> None:
    NO_DEVICE.look()
    assert (NO_DEVICE.take(), nvml.num_reads) == (None, 0)
