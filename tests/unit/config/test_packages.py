"""A setting whose package is not installed is refused with its place, before anything is started."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpcbal.config import load_config, resolved_yaml
from hpcbal.errors import ConfigError

DNN = "{name: a, model: hpcbal.models:softmax, batch_size: 8, stop: {max_epochs: 1}, optimizer: {name: sgd, learning_rate: 1}%s}"  # noqa: E501


def written(folder: Path, balance: str, dnn: str = "") -> Path:
    path = folder / "run.yaml"
    path.write_text(f"dnns: [{DNN % dnn}]\nbalance: {balance}\n", encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcbal.config.checks.names.find_spec", lambda name: None)


@pytest.mark.parametrize(
    ("balance", "dnn"),
    [
        ("{policy: lb-bsp-cpu, predictor: narx}", ""),
        ("{policy: lb-bsp-cpu, predictor: narx}", ", balance: null"),
        ("{predictor: narx}", ", balance: lb-bsp-cpu"),
    ],
)
def test_a_predictor_that_cannot_be_fitted_here_is_refused(tmp_path: Path, balance: str, dnn: str) -> None:
    message = (
        "run.yaml:2: balance.predictor: got 'narx', which needs psutil, not installed here; "
        "pip install 'hpcbal[balance]', or take memoryless"
    )
    path = written(tmp_path, balance, dnn)
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(path, check_imports=True)
    assert load_config(path).balance.predictor == "narx"  # plans may be made on machines that train nothing


def test_a_file_with_every_key_written_out_is_refused_as_the_plain_one_is(tmp_path: Path) -> None:
    plain = written(tmp_path, "{policy: lb-bsp-cpu, predictor: narx}")
    text = resolved_yaml(load_config(plain))
    assert "balance: null" in text
    full = tmp_path / "full.yaml"
    full.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="got 'narx', which needs"):
        load_config(full, check_imports=True)


@pytest.mark.parametrize(
    ("balance", "dnn"),
    [
        ("{policy: lb-bsp-cpu, predictor: memoryless}", ""),
        ("{policy: fitted, predictor: narx}", ""),
        ("{}", ""),
        ("{policy: lb-bsp-cpu, predictor: narx}", ", balance: even"),
        ("{policy: fitted, predictor: narx}", ", balance: null"),
    ],
)
def test_predictors_that_are_not_fitted_need_no_package(tmp_path: Path, balance: str, dnn: str) -> None:
    load_config(written(tmp_path, balance, dnn), check_imports=True)
