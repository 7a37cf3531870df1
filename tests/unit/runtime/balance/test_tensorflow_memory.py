"""What TensorFlow tells of the memory of a GPU; the GPU is made up, where the devices are found is not."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from hpcbal.runtime.balance.tensorflow_memory import CONTEXT, TensorFlowMemory

CPU, GPU = "/job:localhost/replica:0/task:0/device:CPU:0", "/job:localhost/replica:0/task:0/device:GPU:0"


class FakeTensorFlow:
    """Has started, with a CPU and a GPU on which it may take 1,000 bytes."""

    def __init__(self) -> None:
        self.limits = {CPU: 256, GPU: 1000}
        self.handle: object = "runs"
        self.peak = 400
        self.counts = True
        self.num_lists = 0

    def list_devices(self, handle: object) -> list[tuple[str, int]]:
        assert handle == "runs"
        self.num_lists += 1
        return list(self.limits.items())

    def delete(self, devices: object) -> None:
        self.num_lists -= 1

    def memory_info(self, device: str) -> dict[str, int]:
        if not self.counts:
            raise ValueError("Allocator stats not available for device 'GPU:0'")
        assert device == "GPU:0"
        return {"current": 7, "peak": self.peak}

    def reset(self, device: str) -> None:
        assert device == "GPU:0"
        self.peak = 7

    def modules(self) -> dict[str, Any]:
        return {
            "tensorflow": SimpleNamespace(
                config=SimpleNamespace(
                    experimental=SimpleNamespace(
                        get_memory_info=self.memory_info, reset_memory_stats=self.reset
                    )
                )
            ),
            CONTEXT: SimpleNamespace(context_safe=lambda: SimpleNamespace(_context_handle=self.handle)),
            "tensorflow.python.pywrap_tfe": SimpleNamespace(
                TFE_ContextListDevices=self.list_devices,
                TF_DeviceListCount=len,
                TF_DeviceListName=lambda devices, index: devices[index][0],
                TF_DeleteDeviceList=self.delete,
            ),
            "tensorflow.python.client.pywrap_tf_session": SimpleNamespace(
                TF_DeviceListMemoryBytes=lambda devices, index: devices[index][1]
            ),
        }


@pytest.fixture
def tensorflow(monkeypatch: pytest.MonkeyPatch) -> FakeTensorFlow:
    fake = FakeTensorFlow()
    for name, module in fake.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    return fake


@pytest.mark.parametrize(("peak", "share"), [(0, 0.0), (400, 0.4), (1000, 1.0), (1001, 1.0)])
def test_the_peak_is_told_of_what_it_may_take(tensorflow: FakeTensorFlow, peak: int, share: float) -> None:
    tensorflow.peak = peak
    assert TensorFlowMemory().read() == share
    assert tensorflow.num_lists == 0  # each list of devices is given back


def test_before_it_has_started_nothing_is_told(tensorflow: FakeTensorFlow) -> None:
    memory, tensorflow.handle = TensorFlowMemory(), None
    assert memory.read() is None
    tensorflow.handle = "runs"
    assert memory.read() == 0.4


def test_the_peak_counts_from_the_last_begin(tensorflow: FakeTensorFlow) -> None:
    memory = TensorFlowMemory()
    memory.begin()
    assert memory.read() == 0.007


@pytest.mark.parametrize("limits", [{CPU: 256}, {CPU: 256, GPU: 0}])
def test_without_a_gpu_or_its_limit_nothing_is_told(
    tensorflow: FakeTensorFlow, limits: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    tensorflow.limits = limits
    assert TensorFlowMemory().read() is None
    assert caplog.text == ""


def test_an_allocator_that_does_not_count_is_told_once(
    tensorflow: FakeTensorFlow, caplog: pytest.LogCaptureFixture
) -> None:
    memory, tensorflow.counts = TensorFlowMemory(), False
    assert [memory.read() for _ in range(3)] == [None] * 3
    assert caplog.text.count("stats not available") == 1


def test_a_version_that_keeps_its_devices_elsewhere_is_told_once(
    tensorflow: FakeTensorFlow, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow.python.pywrap_tfe")
    memory = TensorFlowMemory()
    assert [memory.read() for _ in range(3)] == [None] * 3
    assert caplog.text.count("pywrap_tfe") == 1


REAL = """\
import logging, sys
from hpcbal.runtime.balance.tensorflow_memory import TensorFlowMemory, limit_of
logging.basicConfig(level=logging.WARNING)
memory = TensorFlowMemory()
memory.begin()
assert memory.read() is None and "tensorflow" not in sys.modules
import tensorflow as tf
from tensorflow.python.eager import context
assert limit_of("CPU:0") is None and memory.read() is None
assert context.context_safe() is None or context.context()._context_handle is None, "it was started"
tf.config.set_visible_devices([], "GPU")
tf.constant(1.0) + 1.0
assert limit_of("CPU:0") > 0, limit_of("CPU:0")
memory.begin()
assert limit_of("GPU:0") is None and memory.read() is None and not memory._gave_up
assert callable(tf.config.experimental.reset_memory_stats)
"""


def test_tensorflow_itself_tells_the_limit_of_its_devices() -> None:
    """Without being imported or started for it."""
    done = subprocess.run(
        [sys.executable, "-c", REAL], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
