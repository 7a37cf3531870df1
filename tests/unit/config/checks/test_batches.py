"""Batches that the data cannot fill are named."""

from __future__ import annotations

from pathlib import Path

from hpcbal.config import load_config
from hpcbal.config.checks.warnings import batches_above

TEXT = """schema: 1
defaults: {batch_size: 64, optimizer: {name: sgd, learning_rate: 0.1}, stop: {max_epochs: 1}}
sweeps:
  - {name: "a{batch_size}", model: "m:net", grid: {batch_size: [8, 96, 97, 98, 99, 100, 101]}}
"""


def test_batches_larger_than_the_training_data_are_named(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(TEXT)
    config = load_config(tmp_path / "run.yaml")
    assert batches_above(config, 101) is None
    line = batches_above(config, 96)
    assert line is not None
    assert "the 96 training samples" in line
    assert "a97 (97), a98 (98), a99 (99), a100 (100) and 1 more" in line
