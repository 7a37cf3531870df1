"""GPUs are counted from what the batch system allows."""

from __future__ import annotations

import pytest

from hpcbal.cluster.layout import granted_gpus, visible_gpus


@pytest.mark.parametrize(
    ("variable", "value", "number"),
    [
        ("CUDA_VISIBLE_DEVICES", "0,1,2", 3),
        ("CUDA_VISIBLE_DEVICES", "GPU-8932f937", 1),
        ("CUDA_VISIBLE_DEVICES", "", 0),
        ("CUDA_VISIBLE_DEVICES", "-1", 0),
        ("CUDA_VISIBLE_DEVICES", "NoDevFiles", 0),
        ("ROCR_VISIBLE_DEVICES", "0,1", 2),
    ],
)
def test_the_visible_devices_count(monkeypatch, variable: str, value: str, number: int):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("ROCR_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv(variable, value)
    assert len(visible_gpus()) == number
    assert visible_gpus("cpu") == ()


@pytest.mark.parametrize(
    ("environ", "granted"),
    [
        ({}, None),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, None),
        ({"CUDA_VISIBLE_DEVICES": ""}, None),
        ({"SLURM_GPUS_ON_NODE": "0"}, None),
        ({"SLURM_GPUS_ON_NODE": "4"}, "SLURM_GPUS_ON_NODE=4"),
        ({"SLURM_JOB_GPUS": "0"}, "SLURM_JOB_GPUS=0"),
        ({"SLURM_STEP_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": ""}, "SLURM_STEP_GPUS=2,3"),
        ({"LSB_JOBID": "7", "CUDA_VISIBLE_DEVICES": "1"}, "CUDA_VISIBLE_DEVICES=1"),
    ],
)
def test_the_batch_system_names_the_gpus_that_it_gave(environ: dict[str, str], granted: str | None):
    assert granted_gpus(environ) == granted
