"""TensorFlow's figures of a GPU's memory; the GPU is made up, the answers without one are not."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from hpcbal.runtime.balance.device_memory import TensorFlowMemory


class FakeTensorFlow:
    """Has a GPU whose peak is 400 bytes, with 7 bytes in use."""

    def __init__(self) -> None:
        self.gpus = ["GPU:0"]
        self.peak = 400
        self.counts = True
        experimental = SimpleNamespace(get_memory_info=self.memory_info, reset_memory_stats=self.reset)
        self.config = SimpleNamespace(
            experimental=experimental, list_logical_devices=lambda kind: self.gpus if kind == "GPU" else []
        )

    def memory_info(self, device: str) -> dict[str, int]:
        if not self.counts:
            raise ValueError("Allocator stats not available for device 'GPU:0'")
        assert device == "GPU:0"
        return {"current": 7, "peak": self.peak}

    def reset(self, device: str) -> None:
        assert device == "GPU:0"
        self.peak = 7


@pytest.fixture
def tensorflow(monkeypatch: pytest.MonkeyPatch) -> FakeTensorFlow:
    fake = FakeTensorFlow()
    monkeypatch.setitem(sys.modules, "tensorflow", fake)  # type: ignore[arg-type]
    return fake


def test_the_peak_counts_from_the_last_begin(tensorflow: FakeTensorFlow) -> None:
    memory = TensorFlowMemory()
    assert memory.peak_bytes() == 400
    memory.begin()
    assert memory.peak_bytes() == 7


def test_without_a_gpu_there_is_no_peak(tensorflow: FakeTensorFlow, caplog: pytest.LogCaptureFixture) -> None:
    tensorflow.gpus = []
    TensorFlowMemory().begin()
    assert TensorFlowMemory().peak_bytes() is None
    assert caplog.text == ""


def test_an_allocator_that_does_not_count_is_logged_once(
    tensorflow: FakeTensorFlow, caplog: pytest.LogCaptureFixture
) -> None:
    memory, tensorflow.counts = TensorFlowMemory(), False
    memory.begin()
    assert [memory.peak_bytes() for _ in range(3)] == [None] * 3
    assert caplog.text.count("stats not available") == 1


def test_tensorflow_itself_has_what_is_asked_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is not imported for it."""
    memory = TensorFlowMemory()
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "tensorflow", raising=False)
        memory.begin()
        assert memory.peak_bytes() is None
        assert "tensorflow" not in sys.modules
    import tensorflow as tf

    memory.begin()
    assert (memory.peak_bytes() is None) == (not tf.config.list_logical_devices("GPU"))
    assert not memory._gave_up
    assert callable(tf.config.experimental.reset_memory_stats)
