"""Weights or the ledger are gone: nothing is called done, and the same command trains what is missing."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcbal.errors import HpcbalError, OutputError
from hpcbal.runtime.handoff.finished import report_of_finished
from hpcbal.runtime.handoff.launch_dir import RunRequest

LATE_STEP = 25
"""Two of the three DNNs are done, and the last one trains."""


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


LOSSES: dict[str, Callable[[Path], object]] = {
    "dnns": lambda out: (out / "dnns").rename(out.parent / "moved"),
    "the folder of a DNN": lambda out: (out / "dnns" / "b").rename(out.parent / "moved"),
    "both checkpoints": lambda out: [path.unlink() for path in (out / "dnns" / "b").glob("*.h5")],
    "the newest checkpoint": lambda out: (out / "dnns" / "b" / "checkpoint.h5").unlink(),
    "its end": lambda out: cut(out / "dnns" / "b" / "checkpoint.h5"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_weights_that_are_removed_during_the_run_fail_it(lab: Any, name: str, capsys: Any) -> None:
    lab.use(dnns=lab.dnns(hook="act"))

    def lose() -> None:
        time.sleep(0.3)  # a checkpoint that is being written would fail first
        LOSSES[name](lab.out)

    lab.at_steps([LATE_STEP], lose)
    assert lab.run() == 1
    shown = capsys.readouterr()
    assert "dnns: the weights of " in shown.err
    assert "run the same command again to train what is missing" in shown.err
    assert (lab.events("run-finished")[-1].outcome, lab.events("run-finished")[-1].exit_code) == (
        "suspended",
        1,
    )
    assert lab.run() == 0
    assert lab.states() == {dnn: ("done", epochs) for dnn, epochs in lab.epochs.items()}
    assert set(lab.outcome()) == set(lab.epochs)


@pytest.mark.parametrize("name", [*LOSSES, "a flipped bit"])
def test_weights_that_are_gone_after_the_run_are_trained_again(lab: Any, name: str) -> None:
    assert lab.run() == 0
    calm = lab.outcome()
    request = RunRequest(lab.out.parent / "run.yaml")
    config = lab.load()
    finished = report_of_finished(request, config)
    assert finished is not None
    assert "nothing to do" in finished[0]
    {**LOSSES, "a flipped bit": lambda out: damage(out / "dnns/b/checkpoint.h5")}[name](lab.out)
    assert report_of_finished(request, config) is None
    assert lab.run() == 0
    assert lab.states() == {dnn: ("done", epochs) for dnn, epochs in lab.epochs.items()}
    again = lab.outcome()
    if name != "dnns":  # else the DNNs train in other passes
        lab.assert_same({"a": again["a"], "c": again["c"]}, {"a": calm["a"], "c": calm["c"]})
    assert report_of_finished(request, config) is not None


def test_a_ledger_that_is_removed_during_the_run_ends_it(lab: Any) -> None:
    lab.use(dnns=lab.dnns(hook="act"))
    lab.at_steps([LATE_STEP], (lab.out / "ledger.jsonl").unlink)
    with pytest.raises(OutputError, match=r"ledger\.jsonl: was removed or replaced during the run"):
        lab.run()
    lab.at_steps([], lambda: None)
    assert lab.run() == 0
    assert lab.states() == {dnn: ("done", epochs) for dnn, epochs in lab.epochs.items()}


def test_an_output_that_is_removed_during_the_run_is_not_called_done(lab: Any) -> None:
    lab.use(dnns=lab.dnns(hook="act"))
    lab.at_steps([LATE_STEP], lambda: lab.out.rename(lab.out.parent / "moved"))
    with pytest.raises(OutputError) as refused:
        lab.run()
    assert "\n" not in str(refused.value)
    lab.at_steps([], lambda: None)
    shutil.rmtree(lab.out, ignore_errors=True)  # what was written after the removal
    assert lab.run() == 0


def test_a_directory_that_was_removed_is_not_made_again(lab: Any) -> None:
    """So the same command begins anew, and is not refused for the rest of the old run."""
    lab.use(dnns=lab.dnns(hook="act"), checkpoint={"interval_s": 0})
    lab.at_steps([LATE_STEP], lambda: lab.out.rename(lab.out.parent / "gone"))
    with pytest.raises(HpcbalError):
        lab.run()
    assert not lab.out.exists()
    lab.at_steps([], lambda: None)
    assert lab.run() == 0
