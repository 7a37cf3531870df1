"""A setting whose package is not installed is refused where it stands, before anything is started."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpcbal.config import load_config
from hpcbal.errors import ConfigError

DNN = "{name: a, model: hpcbal.models:softmax, batch_size: 8, stop: {max_epochs: 1}, optimizer: {name: sgd, learning_rate: 1}%s}"  # noqa: E501


def written(folder: Path, balance: str, dnn: str = "") -> Path:
    path = folder / "run.yaml"
    path.write_text(f"dnns: [{DNN % dnn}]\nbalance: {balance}\n", encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcbal.config.package_check.find_spec", lambda name: None)


@pytest.mark.parametrize(
    ("balance", "dnn"),
    [("{policy: lb-bsp-cpu, predictor: narx}", ""), ("{predictor: narx}", ", balance: lb-bsp-cpu")],
)
def test_a_predictor_that_cannot_be_fitted_here_is_refused(tmp_path: Path, balance: str, dnn: str) -> None:
    told = (
        "run.yaml:2: balance.predictor: got 'narx', which needs psutil and tensorflow, not installed here; "
        "pip install 'hpcbal[balance,tensorflow]', or take one of ema, memoryless"
    )
    path = written(tmp_path, balance, dnn)
    with pytest.raises(ConfigError, match=re.escape(told)):
        load_config(path, check_imports=True)
    assert load_config(path).balance.predictor == "narx"  # a plan may be made where nothing is trained


@pytest.mark.parametrize(
    ("balance", "dnn"),
    [
        ("{policy: lb-bsp-cpu, predictor: ema}", ""),
        ("{policy: fitted, predictor: narx}", ""),
        ("{}", ""),
        ("{policy: lb-bsp-cpu, predictor: narx}", ", balance: even"),
    ],
)
def test_what_is_not_fitted_needs_nothing(tmp_path: Path, balance: str, dnn: str) -> None:
    load_config(written(tmp_path, balance, dnn), check_imports=True)
