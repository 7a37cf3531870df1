"""Every paradigm obeys the contract of `global`: it stops, resumes, survives, and trains the same models."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from typing import Any

import pytest

from hpcbal.dataplane.stream import StreamSpec
from hpcbal.events.ensemble import ChooseSchedule, ScheduleChosen
from hpcbal.runtime.roles import scheduler
from hpcbal.runtime.roles.scheduler import ScheduleChooser
from hpcbal.simulator.choosing import Outset, choose_schedule

PARADIGMS = ["global", "local", "homogeneous", "elastic", "independent", "auto"]
NUM_SAMPLES, BLOCK_SAMPLES = 60, 8  # as in the conftest of the runtime's tests


@pytest.mark.parametrize("paradigm", PARADIGMS)
def test_stops_and_deaths_change_nothing(lab: Any, paradigm: str) -> None:
    """Signals to several ranks, a death, and a start that has nothing to disturb it."""
    lab.use(paradigm, "calm")
    assert lab.run() == 0
    calm = lab.outcome()
    lab.use(paradigm, dnns=lab.dnns(hook="act"))
    lab.stop_at(3, rank=2)
    lab.stop_at(7, rank=1)
    lab.kill_at(5)  # so early that a pass is left for the last stop
    lab.stop_at(2, rank=0)
    lab.at_steps([], lambda: None)
    assert lab.run() == 0
    lab.assert_same(lab.outcome(), calm)
    assert lab.states() == {name: ("done", epochs) for name, epochs in lab.epochs.items()}
    offsets = {line.position.offset for line in lab.events("checkpoint-written")}
    assert offsets - {NUM_SAMPLES}, "no stop was inside a pass"


@pytest.mark.parametrize("num_slots", [1, 2])
def test_a_run_whose_schedule_was_chosen_resumes_from_every_line_of_its_ledger(
    lab: Any, monkeypatch: pytest.MonkeyPatch, num_slots: int
) -> None:
    """Each start dies one line later than the one before, one of them just after `group-started`."""

    def choose(outset: Outset, asked: ChooseSchedule) -> ScheduleChosen:
        choice = choose_schedule(outset, asked)
        schedules = [prediction.schedule for prediction in choice.predictions]
        return replace(choice, schedule=next(each for each in schedules if each.paradigm == "independent"))

    def chooser(spec: StreamSpec, hit_rate: float) -> ScheduleChooser:
        return ScheduleChooser(spec, choose, hit_rate)

    monkeypatch.setattr(scheduler, "ScheduleChooser", chooser)
    sections = {"dnns": [lab.dnn("a", 2), lab.dnn("b", 3)], "num_slots": num_slots}
    lab.use("auto", "calm", **sections)
    assert lab.run() == 0
    calm = lab.outcome()
    lab.use("auto", **sections)
    num_lines = 1
    while lab.dies_after_lines(monkeypatch, num_lines):
        num_lines += 1
    assert lab.states() == {"a": ("done", 2), "b": ("done", 3)}
    assert lab.events("group-started")
    lab.assert_same(lab.outcome(), calm)


@pytest.mark.parametrize("paradigm", PARADIGMS)
def test_a_failing_dnn_leaves_the_others_in_peace(lab: Any, hooks: Any, paradigm: str) -> None:
    hooks["act"] = lambda step: float("nan") if step == 3 else None
    lab.use(paradigm, dnns=[lab.dnn("a", 4), lab.dnn("b", 2, hook="act"), lab.dnn("c", 3)])
    assert lab.run() == 3
    assert lab.states() == {"a": ("done", 4), "b": ("failed", 0), "c": ("done", 3)}
    (failed,) = lab.events("dnn-failed")
    assert (failed.dnn_id, failed.cause) == ("b", "nan")


@pytest.mark.parametrize("paradigm", PARADIGMS)
def test_too_many_broken_samples_stop_the_run(lab: Any, capsys: Any, paradigm: str) -> None:
    lab.use(paradigm, data={"dataset": "in_process_toys:points", "args": {"broken": 20}})
    assert lab.run() == 2
    shown = capsys.readouterr().err
    assert "of 60 samples are broken, more than data.max_bad_fraction (0.01) allows: " in shown
    assert "the point is broken" in shown
    assert not lab.events("epoch-done"), "a pass with too many broken samples is no epoch"


@pytest.mark.parametrize("paradigm", PARADIGMS)
def test_samples_that_an_earlier_start_left_out_do_not_stop_a_run(
    lab: Any, monkeypatch: pytest.MonkeyPatch, paradigm: str
) -> None:
    """Two samples are broken, one is allowed; the file is changed so that the run may go on with them."""
    broken = {"dataset": "in_process_toys:points", "args": {"broken": 2}}
    lab.use(paradigm, data={**broken, "max_bad_fraction": 0.02}, num_slots=1)
    assert lab.run() == 2
    lab.use(paradigm, data={**broken, "max_bad_fraction": 0.02}, num_slots=1)
    assert lab.run() == 2  # again, and not for ever
    lab.use(paradigm, data={**broken, "max_bad_fraction": 0.05}, num_slots=1)
    assert lab.run() == 0
    assert lab.states() == {name: ("done", epochs) for name, epochs in lab.epochs.items()}


@pytest.mark.parametrize("paradigm", ["global", "elastic"])
def test_a_broken_sample_that_is_drawn_again_and_again_is_one_broken_sample(lab: Any, paradigm: str) -> None:
    data = {
        "dataset": "in_process_toys:uneven",
        "args": {"broken": 1},
        "sampling": "balanced",
        "max_bad_fraction": 0.02,
    }
    lab.use(paradigm, data=data)
    assert lab.run() == 0
    assert lab.states() == {name: ("done", epochs) for name, epochs in lab.epochs.items()}


@pytest.mark.parametrize("paradigm", PARADIGMS)
def test_a_dataset_is_opened_and_read_in_one_thread_of_a_process(lab: Any, paradigm: str) -> None:
    lab.use(paradigm, data={"dataset": "in_process_toys:behind_handle"})
    assert lab.run() == 0


def test_sharing_a_stream_or_not_trains_the_same_models(lab: Any) -> None:
    outcomes = []
    for paradigm in ("homogeneous", "independent"):
        lab.use(paradigm, paradigm, num_slots=3)  # all begin with pass 0
        assert lab.run() == 0
        outcomes.append(lab.outcome())
    lab.assert_same(*outcomes)


def test_alone_in_global_and_independent_a_dnn_becomes_the_same_model(lab: Any) -> None:
    outcomes = []
    for paradigm in ("global", "independent"):
        lab.use(paradigm, paradigm, num_slots=1, dnns=[lab.dnn("a", 4)])
        assert lab.run() == 0
        outcomes.append(lab.outcome())
    lab.assert_same(*outcomes)


def test_independent_dnns_pay_for_their_own_preprocessing(lab: Any) -> None:
    reads = importlib.import_module("in_process_toys").READS
    num_reads = []
    for paradigm in ("homogeneous", "independent"):
        lab.use(paradigm, paradigm, num_slots=3)
        reads.clear()
        assert lab.run() == 0
        num_reads.append(len(reads))
    shared, alone = num_reads
    assert alone >= NUM_SAMPLES * sum(lab.epochs.values())
    assert shared <= NUM_SAMPLES * (max(lab.epochs.values()) + 2)  # every pass once, and what was made ahead


def test_no_slot_is_idle_while_an_independent_dnn_waits(lab: Any) -> None:
    lab.use("independent", num_slots=1)
    assert lab.run() == 0
    started = [line.plan.groups[0].dnn_id for line in lab.events("group-started")]
    assert sorted(started) == ["a", "b", "c"]
    assert [line.dnn_id for line in lab.events("group-left")] == started


def test_two_preprocessors_give_the_same_weights_and_read_no_sample_twice(lab: Any) -> None:
    lab.use(output="one")
    assert lab.run() == 0
    one = lab.outcome()
    reads = importlib.import_module("in_process_toys").READS
    reads.clear()
    lab.use(output="two")
    assert lab.run(num_preprocessors=2) == 0
    lab.assert_same(lab.outcome(), one)
    rounds = len(lab.events("round-started"))
    passes = len(lab.events("pass-started")) + rounds
    ahead = NUM_SAMPLES + 2 * 3 * BLOCK_SAMPLES  # the ring holds a pass; each producer some blocks more
    assert passes * NUM_SAMPLES <= len(reads) <= passes * NUM_SAMPLES + rounds * ahead


@pytest.mark.parametrize("paradigm", PARADIGMS)
def test_a_run_predicts_its_duration_and_reports_the_error(lab: Any, capsys: Any, paradigm: str) -> None:
    rates = {"a": {1: 400, 2: 780}, "b": {1: 800, 2: 1500}, "c": {1: 820, 2: 1550}}
    backend = {"name": "emulated", "precision": "float64", "collective": "mpi", "rates": rates}
    lab.use(paradigm, backend=backend)
    assert lab.run() == 0
    shown = capsys.readouterr().out
    assert "if every DNN trains to its max_epochs" in shown
    assert "predicted / actual " in shown
    (reported,) = lab.events("prediction")
    last = lab.events("run-finished")[-1]
    assert last.predicted_s == reported.wall_time_s
    # DNNs train to their max_epochs here; steps take the time of their rates, the rest adds some more.
    assert 0.1 < last.predicted_s < last.actual_s
    status = json.loads((lab.out / "status.json").read_text(encoding="utf-8"))
    assert status["prediction"]["remaining_s"] == 0.0


def test_independent_dnns_become_the_same_whatever_the_speeds_and_slots(lab: Any) -> None:
    outcomes, orders = [], set()
    for number, (num_slots, speeds) in enumerate(
        ((1, (900, 500, 700)), (1, (200, 800, 1600)), (3, (270, 150, 210)))
    ):
        rates = {name: {1: speed} for name, speed in zip("abc", speeds, strict=True)}
        backend = {"name": "emulated", "rates": rates}
        lab.use("independent", num_slots=num_slots, output=f"run{number}", backend=backend)
        assert lab.run() == 0
        outcomes.append(lab.outcome())
        orders.add(tuple(next(iter(line.plan.start)) for line in lab.events("group-started")))
    assert len(orders) > 1, "the speeds did not change which DNN starts first"
    for outcome in outcomes[1:]:
        lab.assert_same(outcome, outcomes[0])
