"""How steps are computed, and what is averaged: numbers that are allowed, and what may change later."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbal.config import load_config
from hpcbal.errors import ConfigError
from hpcbal.kinds import KINDS

TEXT = """\
data: {dataset: "hpcbal.data:digits"}
defaults: {batch_size: 8, optimizer: {name: sgd, learning_rate: 0.1}, stop: {max_epochs: 2}}
dnns: [{name: a, model: "hpcbal.models:mlp"}]
"""
EMULATED = "backend: {name: emulated, rates: {a: {1: 10.0}}}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_both_may_be_defaults(path: Path) -> None:
    (dnn,) = load_config(path, ["defaults.accumulate=8", "defaults.ema=0.999"]).dnns
    assert (dnn.accumulate, dnn.ema) == (8, 0.999)
    assert dnn.for_prediction().ema is None  # kept weights are averages already


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("accumulate=9", "accumulate=9: got 9, allowed: at most batch_size (8)"),
        ("accumulate=0", "accumulate=0: got 0, allowed: a whole number, 1 or more"),
        ("ema=1.0", "ema=1.0: got 1.0, allowed: null, or 0 < ema < 1"),
        ("ema=0.0", "ema=0.0: got 0.0, allowed: null, or 0 < ema < 1"),
        ("gradient_accumulation_steps=4", "did you mean 'accumulate'?"),
        ("accumulate_grad_batches=4", "did you mean 'accumulate'?"),
        ("ema_decay=0.9", "did you mean 'ema'?"),
    ],
)
def test_what_is_not_allowed(path: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(path, [f"dnns.a.{override}"])
    assert message in str(caught.value)


def test_slices_may_change_when_a_run_resumes_and_averages_may_not() -> None:
    assert "accumulate" in KINDS["ensemble"].file.may_change.of_job
    assert "ema" not in KINDS["ensemble"].file.may_change.of_job


def test_slices_have_no_effect_with_the_emulated_backend(path: Path) -> None:
    lines: list[str] = []
    load_config(path, ["defaults.accumulate=2"], warn=lines.append, beforehand=True)
    assert not lines
    path.write_text(TEXT.replace("hpcbal.models:mlp", "hpcbal.models:softmax") + EMULATED, encoding="utf-8")
    load_config(path, ["defaults.accumulate=2"], warn=lines.append, beforehand=True)
    assert any("got 2, which has an effect only with backend.name: auto" in line for line in lines)
