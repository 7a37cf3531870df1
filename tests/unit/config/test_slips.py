"""Slips of people who know Keras get one line that names what they wrote and what they meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbal.config import load_config
from hpcbal.errors import ConfigError

FILE = """\
data: {dataset: "hpcbal.data:digits"}
defaults: {batch_size: 8, optimizer: {name: sgd, learning_rate: 0.1}, stop: {max_epochs: 1}}
dnns: [{name: a, model: "hpcbal.models:mlp"}]
"""
IMPORT = "allowed: an import path package.module:callable"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("dnns:", "3: 4\ndnns:", "3: 3: unknown key, allowed: schema, kind, "),
        (
            "dnns:",
            "preprocessing: [normalize, flip]\ndnns:",
            "3: preprocessing.1: got 'flip' (did you mean 'random_flip'?), allowed: decode, ",
        ),
        (
            "hpcbal.models:mlp",
            "hpcbal.models.mlp",
            f"3: dnns.0.model: got 'hpcbal.models.mlp', {IMPORT} (did you mean 'hpcbal.models:mlp'?)",
        ),
        (
            "hpcbal.models:mlp",
            "models/small.py:mlp",
            f"3: dnns.0.model: got 'models/small.py:mlp', {IMPORT} (did you mean 'models.small:mlp'?)",
        ),
        (
            "hpcbal.models:mlp",
            "mine: mlp",
            f"3: dnns.0.model: got 'mine: mlp', {IMPORT} (did you mean 'mine:mlp'?)",
        ),
        (
            "hpcbal.models:mlp",
            "mine.py:mlp",
            "3: dnns.0.model: got 'mine.py:mlp': no module 'mine.py' (did you mean 'mine'?); put it beside ",
        ),
        ("hpcbal.models:mlp", "a:b:c", f"3: dnns.0.model: got 'a:b:c', {IMPORT}"),
        (
            "max_epochs: 1",
            "max_epochs: 1, monitor: val_acc",
            "2: defaults.stop.monitor: got 'val_acc' (did you mean 'val_accuracy'?), allowed: loss, ",
        ),
        (
            "max_epochs: 1",
            "max_epochs: 1, monitor: Val_Accuracy",
            "2: defaults.stop.monitor: got 'Val_Accuracy' (did you mean 'val_accuracy'?), allowed: loss, ",
        ),
        (
            "max_epochs: 1",
            "max_epochs: 1, monitor: validation_loss",
            "2: defaults.stop.monitor: got 'validation_loss' (did you mean 'val_loss'?), allowed: loss, ",
        ),
        (
            "dnns:",
            "preprocessing: [{Rescaling: {scale: 0.1}}]\ndnns:",
            "3: preprocessing.0.Rescaling: unknown key (did you mean 'normalize'?), allowed: decode, ",
        ),
        (
            "learning_rate: 0.1",
            "learning_rate: 0.1, schedule: cosin",
            "2: defaults.optimizer.schedule.name: got 'cosin' (did you mean 'cosine'?), allowed: null, ",
        ),
        (
            "batch_size: 8",
            "batch_size: 8, metrics: [f1]",
            "2: defaults.metrics.0.name: got 'f1' (did you mean 'f1_score'?), allowed: null or a list of ",
        ),
        (
            "batch_size: 8",
            "batch_size: 8, callbacks: [keras.callbacks.EarlyStopping]",
            f"2: defaults.callbacks.0: got 'keras.callbacks.EarlyStopping', {IMPORT}; instead of ",
        ),
    ],
)
def test_a_slip_is_answered_with_what_was_meant(tmp_path: Path, old: str, new: str, problem: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(FILE.replace(old, new), encoding="utf-8")
    (tmp_path / "mine.py").touch()
    with pytest.raises(ConfigError) as caught:
        load_config(path, check_imports=True)
    (line,) = caught.value.problems
    assert line.startswith(f"{path}:{problem}")
