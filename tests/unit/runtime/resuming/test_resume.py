"""Ledger and checkpoints together define how far a run has come."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ledger_lines import a

from hpcbal.checkpoint.best import EPOCH_FACTS
from hpcbal.checkpoint.state import TrainingState
from hpcbal.checkpoint.writer import write_checkpoint
from hpcbal.control.states import DnnState
from hpcbal.errors import CheckpointError, DataError
from hpcbal.events.ensemble import (
    CheckpointWritten,
    Delta,
    DnnFailed,
    EpochDone,
    GroupLeft,
    GroupPlan,
    LeaveOut,
    LeaveRound,
    NextPass,
    RoundPlan,
    Schedule,
    ScheduleChosen,
    SchedulePrediction,
    StartGroup,
    StartRound,
    StopStream,
)
from hpcbal.events.history import NOTHING_MEASURED, EpochFacts, EpochRecord, Position, RankFacts
from hpcbal.events.line import Line
from hpcbal.events.members import DnnSpec, StopRule
from hpcbal.runtime.resuming.opening import check_fingerprint
from hpcbal.runtime.resuming.resume import Earlier, read_earlier
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.ledger.codec import plain_facts
from hpcbal.telemetry.ledger.dnn_lines import DnnDoneLine, DnnRetriedLine
from hpcbal.telemetry.ledger.run import NodeFacts, RunStartedLine

PLAN = RoundPlan(
    index=4,
    groups=(GroupPlan("a", (0, 1)), GroupPlan("b", (2,))),
    first_pass=7,
    start={"a": Position(7), "b": Position(7)},
    epochs={"a": 2, "b": 0},
    num_preprocessors=1,
    predicted_rate_samples_per_s={"a": 10.0, "b": 11.0},
    num_slots=3,
)


BEGUN = StartRound(PLAN)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def spec(name: str, max_epochs: int = 5) -> DnnSpec:
    rule = StopRule("val_accuracy", "max", 0.0, None, None, max_epochs)
    return DnnSpec(name, 16, rule)


def save(run: RunDirectory, name: str, epochs: int, position: Position, data="data-1", meta=None) -> None:
    metrics = {"loss": 1.0, "accuracy": 0.5, "val_loss": 1.0, "val_accuracy": 0.5}
    history = tuple(EpochRecord(e, e + 4, metrics, 1.0) for e in range(1, epochs + 1))
    state = TrainingState(name, epochs, position, history, {"weights/w": np.ones(3)}, data, meta or {})
    write_checkpoint(run.job(name), state)


def read(run: RunDirectory, *ledger: Any, retry_failed: bool = False, **max_epochs: int) -> Earlier:
    specs = [spec(name, number) for name, number in (max_epochs or {"a": 5, "b": 5}).items()]
    return read_earlier(run, ledger, specs, retry_failed=retry_failed)


def started(num_slots: int = 3, host: str = "n", *, regroup: bool = True) -> Line:
    return a(RunStartedLine, nodes=(NodeFacts(host, num_slots),), regroup=regroup)


def round_ended(**given: bool) -> Line:
    return a(StopStream, **given)


def test_nothing_there_is_a_fresh_start(run: RunDirectory):
    earlier = read(run)
    assert {name: (p.state, p.epochs) for name, p in earlier.resume.dnns.items()} == {
        "a": (DnnState.PENDING, 0),
        "b": (DnnState.PENDING, 0),
    }
    assert (earlier.resume.next_pass, earlier.resume.interrupted) == (0, None)
    assert not earlier.warnings


def test_the_last_choice_of_a_schedule_is_known_with_its_cluster(run: RunDirectory):
    wide, alone = Schedule("global", Delta(relative=1.0), 0.8), Schedule("independent")
    first = ScheduleChosen(wide, (SchedulePrediction(wide, 9.0, 2), SchedulePrediction(alone, 12.0, 5)))
    last = ScheduleChosen(
        alone, (SchedulePrediction(wide, 9.0, 2), SchedulePrediction(alone, 5.0, 5)), wide, 40.0
    )
    resume = read(run, started(), first, last).resume
    assert resume.choice == last
    assert resume.cluster is not None
    assert resume.cluster.num_slots == 3
    assert read(run, started()).resume.choice is None


def test_an_interrupted_round_is_known_with_its_cluster_and_its_passes(run: RunDirectory):
    save(run, "a", 3, Position(8, 40))
    lines = [
        started(),
        BEGUN,
        a(NextPass, pass_index=8),
    ]
    resume = read(run, *lines).resume
    assert resume.interrupted == PLAN
    assert (resume.next_pass, resume.next_round_index) == (9, 5)
    assert resume.cluster is not None
    assert resume.cluster.num_slots == 3
    assert (resume.dnns["a"].epochs, resume.dnns["a"].position) == (3, Position(8, 40))
    suspended = read(run, *lines, round_ended(suspended=True)).resume
    assert suspended.interrupted == PLAN
    ended = read(run, *lines, round_ended(suspended=False)).resume
    assert ended.interrupted is None


def test_a_checkpoint_whose_epochs_are_not_those_of_the_ledger_is_used_with_a_word(run: RunDirectory):
    save(run, "a", 2, Position(7))
    metrics = {"val_accuracy": 0.5}
    first, second = EpochDone("a", 5, metrics, 1.0), EpochDone("a", 6, metrics, 1.0)
    assert not read(run, started(), first, second).warnings
    again = read(run, started(), first, EpochDone("a", 6, metrics, 2.0))
    (warning,) = again.warnings
    assert (
        "a/checkpoint.h5: the checkpoint has epochs that ledger.jsonl lacks, 2 to 2 (was it copied" in warning
    )
    assert again.resume.dnns["a"].epochs == 2
    assert not read(run, started(), first, EpochDone("a", 6, metrics, 2.0), second).warnings  # trained twice


def test_an_epoch_that_rank_0_could_not_write_is_known_from_the_checkpoint(run: RunDirectory):
    save(run, "a", 3, Position(8))
    metrics = {"val_accuracy": 0.5}
    first, second = EpochDone("a", 5, metrics, 1.0), EpochDone("a", 6, metrics, 1.0)
    lost_before = EpochDone("a", 7, metrics, 2.0)  # its weights were lost, and it was trained again
    for known in ([first, second], [first, second, lost_before]):
        earlier = read(run, started(), BEGUN, *known)
        assert [(line.pass_index, line.seconds) for line in earlier.unrecorded] == [(7, 1.0)]
        assert not earlier.warnings
        assert (earlier.unrecorded[0].facts, earlier.passes["a"][7]) == (NOTHING_MEASURED, NOTHING_MEASURED)
        assert not read(run, started(), BEGUN, *known, *earlier.unrecorded).unrecorded
    for of_another_run in ([], [first], [EpochDone("a", 5, metrics, 2.0), second]):
        earlier = read(run, started(), BEGUN, *of_another_run)
        assert not earlier.unrecorded
        (warning,) = earlier.warnings
        assert "has epochs that ledger.jsonl lacks, " in warning


def test_a_checkpoint_has_the_measurements_of_an_epoch_that_the_ledger_lacks(run: RunDirectory):
    ranks = RankFacts(*[(math.nan, 0.5)] * 3, (8, 8), (0.5, 0.5))
    measured = EpochFacts(0.25, 4, 60, 48, 0.5, ranks, learning_rate=0.1)
    first = EpochDone("a", 5, {}, 1.0, facts=replace(measured, learning_rate=0.2))
    save(run, "a", 2, Position(7), meta={EPOCH_FACTS: json.loads(json.dumps(plain_facts(measured)))})
    earlier = read(run, started(), BEGUN, first)
    (line,) = earlier.unrecorded
    assert (line.busy_s, repr(line.facts)) == (0.75, repr(measured))  # as text, because NaN equals nothing
    assert earlier.passes == {"a": {5: first.facts, 6: line.facts}}
    save(run, "a", 2, Position(7), meta={EPOCH_FACTS: {**plain_facts(measured), "num_steps": "four"}})
    with pytest.raises(
        CheckpointError, match=r'not valid \(EpochFacts: num_steps is "four", allowed: a whole'
    ):
        read(run, started(), BEGUN, first)


def test_a_pass_that_was_trained_twice_has_the_measurements_of_the_checkpoint(run: RunDirectory):
    save(run, "a", 1, Position(6))
    kept = EpochDone("a", 5, {}, 1.0, facts=a(EpochFacts, num_steps=4))
    lost = EpochDone("a", 5, {}, 2.0, facts=a(EpochFacts, num_steps=3))
    assert read(run, started(), BEGUN, kept, lost).passes == {"a": {5: kept.facts}}


def test_dnns_that_left_to_regroup_keep_their_slots_until_the_next_round(run: RunDirectory):
    """A kill between two rounds must not lose these slots: the local paradigm leaves DNNs where they are."""
    lines = [
        started(),
        BEGUN,
        LeaveRound("a", "converged", ""),
        LeaveRound("b", "regroup", ""),
        round_ended(suspended=False),
    ]
    assert read(run, *lines).resume.kept == {"b": (2,)}
    assert read(run, *lines, BEGUN).resume.kept == {}


def test_a_round_is_over_once_dnns_train_alone(run: RunDirectory):
    """Otherwise a later start would compare its hosts with those of the interrupted round."""
    save(run, "a", 3, Position(8, 40))
    alone = StartGroup(replace(PLAN, index=5))
    resume = read(run, started(), BEGUN, started(num_slots=4), alone).resume
    assert resume.interrupted is None
    assert resume.cluster is not None
    assert resume.cluster.num_slots == 4
    assert resume.next_round_index == 6


def test_slots_left_out_are_known_as_long_as_the_hosts_are_the_same(run: RunDirectory):
    lines = [
        started(),
        BEGUN,
        LeaveOut("a", 1),
        LeaveOut("a", 2),
        started(),
    ]
    same = read(run, *lines).resume
    assert (same.left_out, same.interrupted) == ({"a": (1, 2)}, PLAN)
    now_off = read_earlier(run, lines, [spec("a")], retry_failed=False, regroups=False).resume
    was_off = read(run, *lines, started(regroup=False), started()).resume
    others = [read(run, *lines, started(4)).resume, read(run, *lines, started(host="m"), started()).resume]
    for resume in (now_off, was_off, *others):  # a round without those slots would still shun them
        assert (resume.left_out, resume.interrupted) == ({}, None)


FORGETTING = {
    "other hosts before": {"later": [started(host="m"), started()]},
    "not wanted before": {"later": [started(regroup=False), started()]},
    "not wanted now": {"regroups": False},
}


@pytest.mark.parametrize("how", FORGETTING)
def test_slots_that_nobody_of_the_round_lacks_are_forgotten_without_ending_it(run: RunDirectory, how: str):
    """`a` is through, `gone` is not in the config any more; or the round is still planned with the slot."""

    def without(dnn: str, slot: int) -> Line:
        return LeaveOut(dnn, slot)

    def read_on(*lines: Any) -> Any:
        change = dict(FORGETTING[how])
        ledger = [started(), *lines, *change.pop("later", [])]
        return read_earlier(run, ledger, [spec("a"), spec("b")], retry_failed=False, **change).resume

    resumed = read_on(without("a", 2), BEGUN)  # PLAN: a has 0 and 1, b has 2
    assert (resumed.left_out, resumed.interrupted) == ({}, None)
    for lines in ([without("gone", 2), BEGUN], [BEGUN, without("a", 1)]):
        resumed = read_on(*lines)
        assert (resumed.left_out, resumed.interrupted) == ({}, PLAN)
    save(run, "a", 5, Position(9, 120))
    resumed = read_on(without("a", 2), BEGUN, DnnDoneLine("a", ""))
    assert (resumed.left_out, resumed.interrupted) == ({}, PLAN)


def test_a_round_without_slots_left_out_is_resumed_on_other_hosts(run: RunDirectory):
    assert read(run, started(), BEGUN, started(host="m")).resume.interrupted == PLAN


def test_a_round_that_ended_to_drop_a_slot_is_continued(run: RunDirectory):
    """A kill after the old round's end and before the new one's beginning."""
    resume = read(run, started(), BEGUN, round_ended(suspended=False, continues=True))
    assert resume.resume.interrupted == PLAN


def test_done_holds_as_long_as_the_stop_rule_agrees(run: RunDirectory):
    save(run, "a", 3, Position(7, 120))
    done = DnnDoneLine("a", "3 of at most 3 epochs")
    progress = read(run, done, a=3).resume.dnns["a"]
    assert (progress.state, progress.detail) == (DnnState.DONE, "3 of at most 3 epochs")
    assert read(run, done, a=4).resume.dnns["a"].state == DnnState.PENDING


def test_done_without_a_checkpoint_is_trained_again(run: RunDirectory):
    progress = read(run, DnnDoneLine("a", "")).resume.dnns["a"]
    assert (progress.state, progress.epochs) == (DnnState.PENDING, 0)


def test_a_failed_dnn_stays_so_unless_it_gets_another_try(run: RunDirectory):
    save(run, "a", 2, Position(6, 120))
    failed = DnnFailed("a", "oom", "17 GiB")
    progress = read(run, failed).resume.dnns["a"]
    assert (progress.state, progress.cause, progress.detail) == (DnnState.FAILED, "oom", "17 GiB")
    again = read(run, failed, retry_failed=True).resume.dnns["a"]
    assert (again.state, again.cause, again.epochs) == (DnnState.PENDING, "", 2)
    done = DnnDoneLine("a", "")
    assert read(run, failed, done, a=2).resume.dnns["a"].state == DnnState.DONE


def test_costs_add_up_over_all_starts(run: RunDirectory):
    left = GroupLeft("a", 2.0, 4.0)
    account = read(run, started(), left, started(), left).accounts["a"]
    assert (account.wall_time_s, account.slot_seconds) == (4.0, 8.0)


def test_a_ledger_that_is_gone_or_damaged_is_reported_once(run: RunDirectory):
    save(run, "a", 1, Position(0, 0))
    (gone,) = read(run).warnings
    assert gone.startswith(f"{run.ledger}: holds no start of this run, although there are checkpoints")
    damaged = read_earlier(run, [started()], [spec("a")], retry_failed=False, problem="line 3 is wrong")
    assert damaged.warnings == ["line 3 is wrong; training resumes from the checkpoints"]
    assert damaged.resume.dnns["a"].epochs == 1


def test_a_damaged_checkpoint_is_reported_and_the_pass_of_the_other_one_counts(run: RunDirectory):
    save(run, "a", 1, Position(5, 120))
    save(run, "a", 2, Position(6, 120))
    (run.job("a") / "checkpoint.h5").write_bytes(b"torn")
    earlier = read(run, started())
    assert earlier.resume.dnns["a"].epochs == 1
    assert len(earlier.warnings) == 1
    assert earlier.resume.next_pass == 6


def test_checkpoints_of_other_data_are_refused(run: RunDirectory):
    save(run, "a", 1, Position(5, 120))
    earlier = read(run)
    check_fingerprint(run, earlier, "data-1")
    with pytest.raises(
        DataError, match=r"fingerprint data-1, now data-2\); restore the dataset, in which only .*, or choose"
    ):
        check_fingerprint(run, earlier, "data-2")


@pytest.mark.parametrize(
    ("trained_on", "now", "words"),
    [
        (
            "data.content",
            "data.content",
            "data.args.path: changed, but the fingerprint of the data is the same",
        ),
        ("data", "data", "data.args.path: changed, but the fingerprint"),
    ],
)
def test_data_that_moved_are_known_by_their_fingerprint(run: RunDirectory, trained_on, now, words):
    save(run, "a", 1, Position(5, 120), data=trained_on)
    assert words in check_fingerprint(run, read(run), now, ["data.args.path"])
    assert check_fingerprint(run, read(run), now) == ""


def test_other_content_and_other_names_of_classes_are_refused(run: RunDirectory):
    save(run, "a", 1, Position(5, 120), data="data.content", meta={"class_names": ["cat", "dog"]})
    earlier = read(run)
    with pytest.raises(DataError, match=r"fingerprint data\.content, now data\.other"):
        check_fingerprint(run, earlier, "data.other")
    with pytest.raises(DataError, match=r"trained on the classes cat, dog, but the data have dog, cat now"):
        check_fingerprint(run, earlier, "data.content", class_names=("dog", "cat"))
    check_fingerprint(run, earlier, "data.content", class_names=("cat", "dog"))


def test_swapped_checkpoints_are_refused(run: RunDirectory):
    save(run, "a", 1, Position(5, 120))
    save(run, "b", 2, Position(5, 120))
    run.job("b").rename(run.root / "aside")
    run.job("a").rename(run.job("b"))
    with pytest.raises(DataError, match=r"dnns/b: the checkpoint belongs to 'a'"):
        read(run)


def test_a_lost_checkpoint_is_reported(run: RunDirectory):
    (warning,) = read(run, started(), a(CheckpointWritten, dnn_id="a")).warnings
    assert "the checkpoint is gone; a starts again" in warning


def test_a_damaged_checkpoint_is_reported_once_and_kept(run: RunDirectory):
    save(run, "a", 1, Position(5, 120))
    os.truncate(run.job("a") / "checkpoint.h5", 1000)
    (warning,) = read(run, started(), a(CheckpointWritten, dnn_id="a")).warnings
    assert "it is truncated or extended" in warning
    assert warning.endswith(
        "kept as checkpoint.damaged.h5; there is no whole checkpoint, so training starts from the beginning"
    )
    assert (run.job("a") / "checkpoint.damaged.h5").stat().st_size == 1000


def test_a_retried_dnn_stays_retried_at_the_next_start(run: RunDirectory):
    failed = DnnFailed("a", "nan", "")
    assert read(run, started(), failed, retry_failed=True).retried == ("a",)
    later = read(run, started(), failed, DnnRetriedLine("a"))
    assert later.resume.dnns["a"].state is DnnState.PENDING
