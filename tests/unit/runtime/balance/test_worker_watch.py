"""A trainer looks at what its policies ask for, and at nothing else."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from hpcbal.config import EnsembleConfig
from hpcbal.runtime.balance import balancer
from hpcbal.runtime.balance.balancer import make_watch
from hpcbal.telemetry.resources.resource_use import ResourceUse


class CountedProbe:
    """Counts how many there are; reads the same every time."""

    made = 0

    def __init__(self) -> None:
        CountedProbe.made += 1

    def read(self) -> ResourceUse:
        return ResourceUse(0.5, 0.25)


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one GPU, 96 % full."""
    nvml = SimpleNamespace(
        NVMLError=OSError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=100, used=96),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.setattr(balancer, "ResourceProbe", CountedProbe)
    monkeypatch.setattr(CountedProbe, "made", 0)


def config_of(
    balance: dict[str, Any], of_the_dnn: str | None = None, backend: str = "tensorflow"
) -> EnsembleConfig:
    dnn = {
        "name": "a",
        "model": "m:f",
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "batch_size": 10,
        "stop": {"max_epochs": 1},
        "balance": of_the_dnn,
    }
    sections = {"name": "a", "dnns": [dnn], "balance": balance, "backend": {"name": backend}}
    return EnsembleConfig.model_validate(sections)


@pytest.mark.parametrize("policy", ["even", "fixed"])
def test_who_balances_nothing_looks_at_nothing(policy: str) -> None:
    watch = make_watch(config_of({"policy": policy, "shares": [1, 2], "predictor": "narx"}), "0")
    assert (watch.host(), watch.device.read(8)) == (ResourceUse(None, None), None)
    assert CountedProbe.made == 0


@pytest.mark.parametrize("policy", ["fitted", "lb-bsp-gpu", "lb-bsp-cpu"])
def test_who_balances_knows_how_full_its_gpu_is(policy: str) -> None:
    assert make_watch(config_of({"policy": policy}), "0").device.read(8) == 0.96
    assert make_watch(config_of({"policy": policy}, backend="emulated"), "0").device.read(8) is None
    assert CountedProbe.made == 0


@pytest.mark.parametrize(("of_the_run", "of_the_dnn"), [("lb-bsp-cpu", None), ("even", "lb-bsp-cpu")])
def test_narx_sees_cpu_and_memory(of_the_run: str, of_the_dnn: str | None) -> None:
    watch = make_watch(config_of({"policy": of_the_run, "predictor": "narx"}, of_the_dnn, "emulated"), "0")
    assert watch.host() == ResourceUse(0.5, 0.25)
