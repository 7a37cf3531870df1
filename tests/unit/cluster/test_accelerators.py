"""GPUs are counted from what the batch system allows."""

from __future__ import annotations

import pytest

from hpcbal.cluster.accelerators import count_gpus


@pytest.mark.parametrize(
    ("variable", "value", "number"),
    [
        ("CUDA_VISIBLE_DEVICES", "0,1,2", 3),
        ("CUDA_VISIBLE_DEVICES", "GPU-8932f937", 1),
        ("CUDA_VISIBLE_DEVICES", "", 0),
        ("CUDA_VISIBLE_DEVICES", "-1", 0),
        ("ROCR_VISIBLE_DEVICES", "0,1", 2),
    ],
)
def test_the_visible_devices_count(monkeypatch, variable: str, value: str, number: int):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("ROCR_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv(variable, value)
    assert count_gpus() == number
