"""Functions of the user's own at the end of each epoch."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

RECORD = {"name": "in_process_toys:record", "args": {"note": "hi"}}


@pytest.fixture
def ends() -> Any:
    toys = importlib.import_module("in_process_toys")
    toys.ENDS.clear()
    return toys.ENDS


def use(lab: Any, callbacks: list[Any], output: str = "out", **args: Any) -> None:
    lab.use(output=output, dnns=[{**dnn, "callbacks": callbacks} for dnn in lab.dnns(**args)])


def test_the_master_calls_them_once_for_each_epoch(lab: Any, ends: Any) -> None:
    use(lab, [RECORD])
    assert lab.run() == 0
    seen = [(name, epoch) for name, epoch, *_ in ends]
    expected = [(name, epoch) for name, num in lab.epochs.items() for epoch in range(1, num + 1)]
    assert sorted(seen) == sorted(expected)
    for name, epoch, metrics, _, _, note in ends:
        history = lab.outcome()[name][0]
        assert metrics == history[epoch - 1][2]
        assert note == "hi"
    last = {name: kernel for name, _, _, kernel, *_ in ends}
    for name, (_, arrays) in lab.outcome().items():
        np.testing.assert_array_equal(last[name], arrays["weights/softmax/kernel"])
    with pytest.raises(ValueError, match="read-only"):
        ends[0][3][:] = 0.0


def test_a_stopped_run_calls_them_for_the_other_epochs_only(lab: Any, hooks: Any, ends: Any) -> None:
    hooks["act"] = lambda step: None
    use(lab, [RECORD], hook="act")
    lab.stop_at(14, rank=1)
    hooks["act"] = lambda step: None
    assert lab.run() == 0
    seen = [(name, epoch) for name, epoch, *_ in ends]
    assert sorted(seen) == sorted((n, e) for n, num in lab.epochs.items() for e in range(1, num + 1))


@pytest.mark.parametrize("step", [6, 14])
def test_after_a_kill_they_are_called_for_each_epoch_that_is_trained(lab: Any, ends: Any, step: int) -> None:
    """An epoch that was lost is called again, with the same metrics; none is called beyond the last."""
    use(lab, [RECORD], hook="act")
    lab.kill_at(step)
    before = [(name, epoch) for name, epoch, *_ in ends]
    ends.clear()
    assert lab.run() == 0
    after = [(name, epoch) for name, epoch, *_ in ends]
    assert len(set(before)) == len(before)
    assert len(set(after)) == len(after)
    expected = {(name, epoch) for name, num in lab.epochs.items() for epoch in range(1, num + 1)}
    assert {*before, *after} == expected
    history = {name: lab.outcome()[name][0] for name in lab.epochs}
    for name in lab.epochs:  # from the epoch behind its checkpoint on, without a gap
        epochs = [epoch for other, epoch in after if other == name]
        assert epochs == list(range(lab.epochs[name] - len(epochs) + 1, lab.epochs[name] + 1))
    for name, epoch, metrics, *_ in ends:
        assert metrics == history[name][epoch - 1][2]


@pytest.mark.parametrize("epoch", [1, 2])
def test_one_that_raises_fails_its_dnn_and_no_other(lab: Any, epoch: int) -> None:
    """Also in the last epoch of the DNN."""
    dnns = lab.dnns()
    own = {"name": "in_process_toys:Stubborn", "args": {"epoch": epoch}}
    (shortest, *others) = sorted(lab.epochs, key=lambda name: lab.epochs[name])
    lab.use(dnns=[{**dnn, "callbacks": [own]} if dnn["name"] == shortest else dnn for dnn in dnns])
    assert lab.run() == 3
    (failed,) = lab.events("dnn-failed")
    assert failed.dnn_id == shortest
    assert f"callback in_process_toys:Stubborn: epoch {epoch} failed: " in failed.detail
    assert "in_process_toys.py:" in failed.detail
    assert "RuntimeError: no room for my plot" in failed.detail
    states = lab.states()
    assert states[shortest] == ("failed", epoch - 1)
    assert all(states[name] == ("done", lab.epochs[name]) for name in others)
