"""The time of a run over its starts, without queues, and how busy its slots are."""

from __future__ import annotations

import math

import pytest
from ledger_lines import a, plan_of

from hpcbal.events.ensemble import CheckpointWritten, EpochDone, GroupPlan, StartProfiling, StartRound
from hpcbal.events.history import EpochFacts
from hpcbal.events.line import Line
from hpcbal.telemetry.ledger.account import RunAccount
from hpcbal.telemetry.ledger.job_lines import (
    JobEpochLine,
    JobPlacedLine,
    JobSubmittedLine,
    MachinesBusyLine,
    MachinesUsedLine,
    RolesAssignedLine,
    WorkerFacts,
)
from hpcbal.telemetry.ledger.run import NodeFacts, PredictionLine, RunFinishedLine, RunStartedLine, WholeRun


def started(num_slots: int = 2, opening_s: float = 3.0, **given: object) -> RunStartedLine:
    return a(RunStartedLine, nodes=(NodeFacts("n", num_slots),), opening_s=opening_s, **given)


def whole(*lines: tuple[float, Line], until_s: float | None = None) -> WholeRun:
    account = RunAccount()
    for unix_s, line in lines:
        account.take(1000.0 + unix_s, line)
    return account.whole(None if until_s is None else 1000.0 + until_s)


def test_a_run_of_one_start() -> None:
    found = whole(
        (0.0, started(expected_startup_s=2.0)),
        (1.0, StartRound(plan_of({"a": (0, 1)}))),
        (1.5, a(PredictionLine, remaining_s=10.0, busy=0.8)),
        (6.0, a(EpochDone, dnn_id="a", busy_s=4.0)),
        (9.0, a(EpochDone, dnn_id="a", busy_s=math.nan)),
        (9.5, a(CheckpointWritten, dnn_id="a", seconds=0.3)),
        until_s=13.0,
    )
    assert found == WholeRun(
        predicted_s=10.5,
        predicted_busy=0.8,
        startup_s=4.0,
        active_s=16.0,
        busy=0.25,
        busy_by_slot=(0.25, 0.25),
        num_starts=1,
        checkpoint_s=0.3,
        expected_startup_s=2.0,
    )
    assert found.expected_s == 12.5, "not the 14.5 s that follow from the start that was measured"
    assert found.expected_busy == pytest.approx(0.8 * 10.5 / 12.5)


def test_queues_between_starts_do_not_count_and_the_first_prediction_stays() -> None:
    found = whole(
        (0.0, started(expected_startup_s=2.0)),
        (1.0, StartRound(plan_of({"a": (0,)}))),
        (1.0, a(PredictionLine, remaining_s=10.0)),
        (6.0, a(EpochDone, dnn_id="a", busy_s=5.0)),  # then it is killed
        (1000.0, started(resumed=True, expected_startup_s=5.0)),
        (1001.0, StartRound(plan_of({"a": (1,)}, {"a": 1}))),
        (1001.0, a(PredictionLine, remaining_s=5.0)),
        (1006.0, a(EpochDone, dnn_id="a", busy_s=5.0)),
        (1007.0, a(RunFinishedLine, outcome="done")),
    )
    assert (found.predicted_s, found.startup_s, found.active_s, found.num_starts) == (10.0, 4.0, 19.0, 2)
    assert found.expected_s == 12.0
    assert found.busy_by_slot == pytest.approx((5 / 19, 5 / 19), abs=1e-4)


@pytest.mark.parametrize(
    "later",
    [
        started(resumed=True, has_changed=True),
        started(num_slots=4, resumed=True),
        a(JobSubmittedLine, job="x"),
    ],
    ids=["changed config", "other slots", "submitted job"],
)
def test_a_prediction_of_another_run_than_it_became_is_forgotten(later: Line) -> None:
    found = whole(
        (0.0, started()),
        (1.0, StartRound(plan_of({"a": (0,)}))),
        (1.0, a(PredictionLine, remaining_s=10.0, busy=0.5)),
        (20.0, later),
        until_s=30.0,
    )
    assert (found.predicted_s, found.predicted_busy) == (None, None)
    assert (found.expected_s, found.expected_busy) == (None, None)


def test_profiling_is_predicted_work_and_not_busy() -> None:
    found = whole(
        (0.0, started(opening_s=1.0)),
        (1.0, StartProfiling((GroupPlan("a", (0,)),))),
        (4.0, StartRound(plan_of({"a": (0,)}))),
        (4.0, a(PredictionLine, remaining_s=10.0)),
        until_s=14.0,
    )
    assert (found.startup_s, found.predicted_s, found.busy) == (2.0, 13.0, 0.0)


def test_executors_are_busy_while_their_workers_compute() -> None:
    worker = a(WorkerFacts, executor=2, compute_s=6.0)
    found = whole(
        (0.0, started(opening_s=0.0)),
        (2.0, a(RolesAssignedLine)),
        (10.0, a(JobEpochLine, job="j", workers=(worker,))),
        until_s=12.0,
    )
    assert (found.startup_s, found.busy_by_slot) == (2.0, (0.0, 0.5))


def test_machines_are_busy_while_subtasks_compute() -> None:
    found = whole(
        (0.0, started(opening_s=5.0)),
        (1.0, a(JobPlacedLine, job="j", machines=(1,))),
        (10.0, a(MachinesUsedLine, machines=(1, 2), cpu=(0.6, 0.3))),
        until_s=10.0,
    )
    assert (found.startup_s, found.busy_by_slot) == (6.0, (0.4, 0.2))


def test_machines_of_a_killed_run_are_as_busy_as_was_recorded_from_time_to_time() -> None:
    late = a(MachinesBusyLine, machines=(1, 2), seconds=(5.0, 5.0), cpu=(0.6, 0.2))
    lines = [(0.0, started(opening_s=0.0)), (5.0, late)]
    assert whole(*lines, until_s=10.0).busy_by_slot == (0.3, 0.1)
    lines.append((10.0, a(MachinesUsedLine, machines=(1, 2), cpu=(0.4, 0.3))))  # of the whole start
    assert whole(*lines, until_s=10.0).busy_by_slot == (0.4, 0.3)


def test_a_ledger_of_an_older_version_has_no_opening() -> None:
    found = whole((0.0, started(opening_s=math.nan)), until_s=3.0)
    assert (found.active_s, found.predicted_s, found.expected_s) == (3.0, None, None)


def test_what_gpus_tell_is_a_share_of_all_slots_and_the_whole_time() -> None:
    facts = a(EpochFacts, device_busy=0.5)
    found = whole(
        (0.0, started(opening_s=0.0)),
        (0.0, StartRound(plan_of({"a": (0,)}))),
        (8.0, a(EpochDone, dnn_id="a", seconds=8.0, busy_s=6.0, facts=facts)),
        until_s=10.0,
    )
    assert found.busy == pytest.approx(0.3)
    assert found.device_busy == pytest.approx(0.2)
