"""Probable mistakes are reported before the DNNs start."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from hpcbal.report.model import ModelWarning
from hpcbal.report.page.page import render_page
from hpcbal.report.reading.run_files import read_run
from hpcbal.training.emulated_backend import EmulatedReplica


def test_strange_labels_and_large_batches_are_reported_first(
    in_process: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    toys = importlib.import_module("in_process_toys")
    monkeypatch.setattr(toys.Points, "labels", np.arange(60) % 2, raising=False)
    monkeypatch.setattr(toys.Points, "read", lambda self, i: (self._points[i], i % 2))
    in_process.configure(lambda config: config["defaults"].update(batch_size=100))
    assert in_process.run() == 0
    lines = [line.partition("] ")[2] for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "host: 2 emulated slots, 1 preprocessor, the scheduler"
    assert lines[1].startswith(
        "warning: data.dataset in_process_toys:points: the labels are 0 to 1, but class 2"
    )
    assert lines[2].startswith("warning: batch_size is more than the 48 training samples")


def test_keys_that_need_samples_of_unequal_size_are_reported(in_process: Any, capsys: Any) -> None:
    changed = {"max_work_per_slot": 40.0, "cost": "sum", "samples": "in-order", "gradient_weights": "samples"}
    in_process.configure(balance=changed)
    assert in_process.run() == 0
    lines = [line.partition("] warning: ")[2] for line in capsys.readouterr().out.splitlines()]
    warned = [line for line in lines if "which has an effect only on samples that differ in size" in line]
    assert [line.partition(",")[0] for line in warned] == [
        "balance.cost: got sum",
        "balance.max_work_per_slot: got 40.0",
        "balance.samples: got in-order",
    ]


def test_a_warning_about_a_model_is_printed_once_and_reported(
    in_process: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The model is built on both slots, and again when the run resumes."""
    text = "DNN a: its model is strange"
    monkeypatch.setattr(EmulatedReplica, "warnings", [text])
    dnn = {"name": "a", "model": "in_process_toys:toy"}
    for epochs in (1, 2):
        in_process.configure(dnns=[{**dnn, "stop": {"max_epochs": epochs}}])
        assert in_process.run() == 0
        assert capsys.readouterr().out.count(f"] warning: {text}\n") == 1
    assert [(line.dnn_id, line.detail) for line in in_process.events("model-warning")] == [("a", text)] * 2
    data = read_run(in_process.out)
    assert data.warnings == (ModelWarning("a", text),)
    assert render_page(data).count(text) == 1
