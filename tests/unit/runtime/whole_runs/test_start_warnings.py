"""What may be a mistake is reported before the DNNs start."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest


def test_strange_labels_and_large_batches_are_reported_first(
    in_process: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    toys = importlib.import_module("in_process_toys")
    monkeypatch.setattr(toys.Points, "labels", np.arange(60) % 2, raising=False)
    in_process.configure(lambda config: config["defaults"].update(batch_size=100))
    assert in_process.run() == 0
    lines = [line.partition("] ")[2] for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "host: 2 emulated slots, 1 preprocessor, the scheduler"
    assert lines[1].startswith(
        "warning: data.dataset in_process_toys:points: the labels are 0 to 1, but class 2"
    )
    assert lines[2].startswith("warning: batch_size is more than the 48 training samples")
