"""DNNs that the user asks to stop end for good, whatever stops or kills the run in between."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from hpcbal.cli.main import main
from hpcbal.runtime.handoff.submissions import ask_to_stop
from hpcbal.runtime.roles import scheduler
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.views.read_status import read_status


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "LOOK_INTERVAL_S", 0.0)


def wait_for(lab: Any, event: str) -> None:
    """Let a rank wait until the ledger has such a line."""
    deadline_s = time.monotonic() + 30.0
    while not lab.events(event):
        assert time.monotonic() < deadline_s, f"no line {event}"
        time.sleep(0.001)


def ask(lab: Any, *names: str) -> None:
    ask_to_stop(RunDirectory(Path(lab.out)), names)


@pytest.mark.parametrize("paradigm", ["global", "independent"])
def test_a_dnn_that_trains_leaves_after_its_epoch_and_one_that_waits_at_once(
    lab: Any, paradigm: str, capsys: Any
) -> None:
    lab.use(paradigm, num_slots=1, dnns=lab.dnns(hook="act"))

    def act() -> None:
        running = {group.dnn_id for line in lab.events("round-started") for group in line.plan.groups}
        running |= {group.dnn_id for line in lab.events("group-started") for group in line.plan.groups}
        waiting = min(lab.epochs.keys() - running)
        stopped.extend([*running, waiting])
        ask(lab, *running, waiting)
        wait_for(lab, "dnn-stopped")

    stopped: list[str] = []
    lab.at_steps([1], act)
    assert lab.run() == 0
    (trained, waited) = stopped
    states = lab.states()
    assert (states[trained], states[waited]) == (("stopped", 1), ("stopped", 0))
    (left,) = lab.epochs.keys() - set(stopped)
    assert states[left] == ("done", lab.epochs[left])
    assert len(lab.outcome()[trained][0]) == 1, "its checkpoint is that of the epoch"
    assert not (lab.out / "dnns" / waited / "checkpoint.h5").exists()
    shown = capsys.readouterr().out
    assert f"{trained} stopped after 1 epoch, best val acc" in shown
    assert f"{waited} stopped after 0 epochs (stopped by the user)" in shown
    assert "1 done, 2 stopped in this start" in shown
    assert lab.run() == 0, "nothing is left to do"
    assert lab.states() == states


def test_a_request_outlives_the_death_of_the_run(lab: Any) -> None:
    """It comes when rank 0 hears of it no more, and the next start does not train the DNN at all."""
    lab.use(dnns=lab.dnns(hook="act"))
    lab.kill_at(3)
    ask(lab, "c", "a")
    assert lab.run() == 0
    assert lab.states() == {"a": ("stopped", 0), "b": ("done", 2), "c": ("stopped", 0)}
    assert sorted(line.dnn_id for line in lab.events("dnn-stopped")) == ["a", "c"]
    assert not lab.events("stop-asked")
    assert lab.run() == 0
    assert len(lab.events("dnn-stopped")) == 2, "no second line for each"


def test_a_run_whose_dnns_are_all_stopped_is_done(lab: Any) -> None:
    lab.use(dnns=lab.dnns(hook="act"))

    def act() -> None:
        ask(lab, "a", "b", "c")
        wait_for(lab, "stop-asked")

    lab.at_steps([1], act)
    assert lab.run() == 0
    assert {state for state, _ in lab.states().values()} == {"stopped"}


def test_the_verb_refuses_what_it_cannot_stop(lab: Any, capsys: Any) -> None:
    lab.use(dnns=lab.dnns(hook="act"))
    lab.stop_at(2, rank=1)
    capsys.readouterr()
    out = str(lab.out)
    assert main(["stop", out, "a", "d"]) == 2
    assert "the run has no DNN 'd'" in capsys.readouterr().err
    assert not RunDirectory(lab.out).stop_requests.exists(), "nothing is asked for"
    assert main(["stop", out, "c", "c"]) == 0
    assert capsys.readouterr().out == "c: asked to stop, at the run's next start\n"
    assert main(["stop", out, "c"]) == 0
    assert capsys.readouterr().out == "c: asked to stop before, at the run's next start\n"
    assert lab.run() == 0
    capsys.readouterr()
    assert main(["stop", out, "a"]) == 2
    assert (
        "a is done already, allowed: DNNs that are not over (none, all are over)" in capsys.readouterr().err
    )
    (file,) = RunDirectory(lab.out).stop_requests.iterdir()
    assert file.read_text() == "c\n"
    assert {dnn["name"]: dnn["state"] for dnn in read_status(lab.out)["dnns"]}["c"] == "stopped"
