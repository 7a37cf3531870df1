"""`validate` warns of `no_weight_decay` only where no weight decays."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbal.config import load_config

TEXT = """\
backend: {{name: {backend}, rates: {rates}}}
defaults: {{batch_size: 4, stop: {{max_epochs: 2}}}}
dnns: [{{name: a, model: "hpcbal.models:softmax", optimizer: {optimizer}}}]
"""


@pytest.mark.parametrize(
    ("backend", "optimizer", "is_in_vain"),
    [
        ("tensorflow", "{name: adamw, learning_rate: 0.1, no_weight_decay: [bias]}", False),
        ("tensorflow", "{name: sgd, learning_rate: 0.1, weight_decay: 0.1, no_weight_decay: [bias]}", False),
        ("emulated", "{name: sgd, learning_rate: 0.1, weight_decay: 0.1, no_weight_decay: [bias]}", True),
    ],
)
def test_adamw_decays_by_default(tmp_path: Path, backend: str, optimizer: str, is_in_vain: bool) -> None:
    rates = "{a: {1: 10.0}}" if backend == "emulated" else "{}"
    path = tmp_path / "run.yaml"
    path.write_text(TEXT.format(backend=backend, rates=rates, optimizer=optimizer), encoding="utf-8")
    lines: list[str] = []
    load_config(path, warn=lines.append, beforehand=True)
    assert any("no_weight_decay" in line for line in lines) == is_in_vain
