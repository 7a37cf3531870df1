"""Checkpoints after a number of steps, inside epochs: where they are, and that training goes on from them."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbal.checkpoint.background import BackgroundWriter

SPARSE = {"interval_s": 3600.0, "interval_steps": 3}


@pytest.mark.parametrize("interval_s", [0.0, 3600.0])
def test_checkpoints_come_every_few_steps(
    lab: Any, monkeypatch: pytest.MonkeyPatch, interval_s: float
) -> None:
    """Eight steps of six samples in an epoch; what falls on its end is saved there."""
    submit = BackgroundWriter.submit

    def submit_and_wait(writer: BackgroundWriter, *args: Any, **kwargs: Any) -> None:
        submit(writer, *args, **kwargs)
        writer.wait()  # one that waits for the file system is dropped when a newer one comes

    monkeypatch.setattr(BackgroundWriter, "submit", submit_and_wait)
    (dnn,) = ({**dnn, "batch_size": 6} for dnn in lab.dnns()[:1])
    lab.use("independent", dnns=[dnn], checkpoint={**SPARSE, "interval_s": interval_s})
    assert lab.run() == 0
    written = [(line.epoch, line.position.offset) for line in lab.events("checkpoint-written")]
    inside = [(epoch, offset) for epoch, offset in written if 0 < offset < 48]
    if interval_s:  # the count goes on over the end of an epoch
        assert [(8 * epoch + offset // 6) % 3 for epoch, offset in inside] == [0] * len(inside)
        assert len(written) < 12
    else:
        assert {offset for _, offset in inside} == {18, 36}
    assert len(inside) >= 4, written


@pytest.mark.parametrize("step", [5, 9, 14])
def test_a_killed_run_goes_on_from_inside_an_epoch(lab: Any, hooks: Any, step: int) -> None:
    hooks["act"] = lambda number: None
    dnns = [{**dnn, "batch_size": 6} for dnn in lab.dnns(hook="act")]
    lab.use("global", "whole", dnns=dnns)
    assert lab.run() == 0
    wanted = lab.outcome()
    lab.use("global", "killed", dnns=dnns, checkpoint=SPARSE)
    lab.kill_at(step)
    hooks["act"] = lambda number: None
    assert lab.run() == 0
    lab.assert_same(lab.outcome(), wanted)
