"""Ledger and checkpoints together tell how far a run has come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcbal.checkpoint import TrainingState, write_checkpoint
from hpcbal.control import DnnSpec, DnnState, StopRule
from hpcbal.control.messages import GroupPlan, RoundPlan
from hpcbal.control.resume_json import round_plan_to_dict
from hpcbal.errors import DataError
from hpcbal.runtime.resuming.resume import Earlier, check_fingerprint, read_earlier
from hpcbal.telemetry import RunDirectory
from hpcbal.values import EpochRecord, Position

PLAN = RoundPlan(
    index=4,
    groups=(GroupPlan("a", (0, 1)), GroupPlan("b", (2,))),
    first_pass=7,
    start={"a": Position(7), "b": Position(7)},
    epochs={"a": 2, "b": 0},
    num_preprocessors=1,
    predicted_rate_samples_per_s={"a": 10.0, "b": 11.0},
    num_gpus=3,
)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def spec(name: str, max_epochs: int = 5) -> DnnSpec:
    rule = StopRule("val_accuracy", "max", 0.0, None, None, max_epochs)
    return DnnSpec(name, 16, rule)


def save(run: RunDirectory, name: str, epochs: int, position: Position) -> None:
    metrics = {"loss": 1.0, "accuracy": 0.5, "val_loss": 1.0, "val_accuracy": 0.5}
    history = tuple(EpochRecord(e, e + 4, metrics, 1.0) for e in range(1, epochs + 1))
    state = TrainingState(name, epochs, position, history, {"weights/w": np.ones(3)}, "data-1")
    write_checkpoint(run.dnn(name), state)


def read(run: RunDirectory, *ledger: Any, retry_failed: bool = False, **max_epochs: int) -> Earlier:
    specs = [spec(name, number) for name, number in (max_epochs or {"a": 5, "b": 5}).items()]
    return read_earlier(run, ledger, specs, retry_failed=retry_failed)


def started(num_gpus: int = 3, host: str = "n") -> dict[str, Any]:
    return {"event": "run-started", "nodes": [{"host": host, "num_gpus": num_gpus}]}


def test_nothing_there_is_a_fresh_start(run: RunDirectory):
    earlier = read(run)
    assert {name: (p.state, p.epochs) for name, p in earlier.resume.dnns.items()} == {
        "a": (DnnState.PENDING, 0),
        "b": (DnnState.PENDING, 0),
    }
    assert (earlier.resume.next_pass, earlier.resume.interrupted) == (0, None)
    assert not earlier.warnings


def test_an_interrupted_round_is_known_with_its_cluster_and_its_passes(run: RunDirectory):
    save(run, "a", 3, Position(8, 40))
    lines = [
        started(),
        {"event": "round-started", "plan": round_plan_to_dict(PLAN)},
        {"event": "pass-started", "pass_index": 8},
    ]
    resume = read(run, *lines).resume
    assert resume.interrupted == PLAN
    assert (resume.next_pass, resume.next_round_index) == (9, 5)
    assert resume.cluster is not None
    assert resume.cluster.num_gpus == 3
    assert (resume.dnns["a"].epochs, resume.dnns["a"].position) == (3, Position(8, 40))
    suspended = read(run, *lines, {"event": "round-ended", "suspended": True}).resume
    assert suspended.interrupted == PLAN
    ended = read(run, *lines, {"event": "round-ended", "suspended": False}).resume
    assert ended.interrupted is None


def test_dnns_that_left_to_regroup_keep_their_gpus_until_the_next_round(run: RunDirectory):
    """What a kill between two rounds would lose: the local paradigm leaves them where they are."""
    begun = {"event": "round-started", "plan": round_plan_to_dict(PLAN)}
    lines = [
        started(),
        begun,
        {"event": "leave-round", "dnn": "a", "reason": "converged"},
        {"event": "leave-round", "dnn": "b", "reason": "regroup"},
        {"event": "round-ended", "suspended": False},
    ]
    assert read(run, *lines).resume.kept == {"b": (2,)}
    assert read(run, *lines, begun).resume.kept == {}


def test_gpus_left_out_are_known_as_long_as_the_hosts_are_the_same(run: RunDirectory):
    begun = {"event": "round-started", "plan": round_plan_to_dict(PLAN)}
    lines = [
        started(),
        begun,
        {"event": "gpu-left-out", "dnn": "a", "gpu": 1},
        {"event": "gpu-left-out", "dnn": "a", "gpu": 2},
        started(),
    ]
    same = read(run, *lines).resume
    assert (same.left_out, same.interrupted) == ({"a": (1, 2)}, PLAN)
    now_off = read_earlier(run, lines, [spec("a")], retry_failed=False, regroups=False).resume
    was_off = read(run, *lines, {**started(), "regroup": False}, started()).resume
    others = [read(run, *lines, started(4)).resume, read(run, *lines, started(host="m"), started()).resume]
    for resume in (now_off, was_off, *others):  # a round without those GPUs would still shun them
        assert (resume.left_out, resume.interrupted) == ({}, None)


FORGETTING = {
    "other hosts before": {"later": [started(host="m"), started()]},
    "not wanted before": {"later": [{**started(), "regroup": False}, started()]},
    "not wanted now": {"regroups": False},
}


@pytest.mark.parametrize("how", FORGETTING)
def test_gpus_that_nobody_of_the_round_lacks_are_forgotten_without_ending_it(run: RunDirectory, how: str):
    """`a` is through, `gone` is not in the config any more; or the round is still planned with the GPU."""
    begun = {"event": "round-started", "plan": round_plan_to_dict(PLAN)}

    def without(dnn: str, gpu: int) -> dict[str, Any]:
        return {"event": "gpu-left-out", "dnn": dnn, "gpu": gpu}

    def read_on(*lines: Any) -> Any:
        change = dict(FORGETTING[how])
        ledger = [started(), *lines, *change.pop("later", [])]
        return read_earlier(run, ledger, [spec("a"), spec("b")], retry_failed=False, **change).resume

    resumed = read_on(without("a", 2), begun)  # PLAN: a has 0 and 1, b has 2
    assert (resumed.left_out, resumed.interrupted) == ({}, None)
    for lines in ([without("gone", 2), begun], [begun, without("a", 1)]):
        resumed = read_on(*lines)
        assert (resumed.left_out, resumed.interrupted) == ({}, PLAN)
    save(run, "a", 5, Position(9, 120))
    resumed = read_on(without("a", 2), begun, {"event": "dnn-done", "dnn": "a", "detail": ""})
    assert (resumed.left_out, resumed.interrupted) == ({}, PLAN)


def test_a_round_without_gpus_left_out_goes_on_on_other_hosts(run: RunDirectory):
    begun = {"event": "round-started", "plan": round_plan_to_dict(PLAN)}
    assert read(run, started(), begun, started(host="m")).resume.interrupted == PLAN


def test_a_round_that_ended_to_go_on_without_a_gpu_is_continued(run: RunDirectory):
    """A kill after the old round's end and before the new one's beginning."""
    begun = {"event": "round-started", "plan": round_plan_to_dict(PLAN)}
    resume = read(run, started(), begun, {"event": "round-ended", "suspended": False, "continues": True})
    assert resume.resume.interrupted == PLAN


def test_done_holds_as_long_as_the_stop_rule_agrees(run: RunDirectory):
    save(run, "a", 3, Position(7, 120))
    done = {"event": "dnn-done", "dnn": "a", "detail": "3 of at most 3 epochs"}
    progress = read(run, done, a=3).resume.dnns["a"]
    assert (progress.state, progress.detail) == (DnnState.DONE, "3 of at most 3 epochs")
    assert read(run, done, a=4).resume.dnns["a"].state == DnnState.PENDING


def test_done_without_a_checkpoint_is_trained_again(run: RunDirectory):
    progress = read(run, {"event": "dnn-done", "dnn": "a", "detail": ""}).resume.dnns["a"]
    assert (progress.state, progress.epochs) == (DnnState.PENDING, 0)


def test_a_failed_dnn_stays_so_unless_it_gets_another_try(run: RunDirectory):
    save(run, "a", 2, Position(6, 120))
    failed = {"event": "dnn-failed", "dnn": "a", "cause": "oom", "detail": "17 GiB"}
    progress = read(run, failed).resume.dnns["a"]
    assert (progress.state, progress.cause, progress.detail) == (DnnState.FAILED, "oom", "17 GiB")
    again = read(run, failed, retry_failed=True).resume.dnns["a"]
    assert (again.state, again.cause, again.epochs) == (DnnState.PENDING, "", 2)
    done = {"event": "dnn-done", "dnn": "a", "detail": ""}
    assert read(run, failed, done, a=2).resume.dnns["a"].state == DnnState.DONE


def test_costs_add_up_over_all_starts(run: RunDirectory):
    left = {"event": "group-left", "dnn": "a", "wall_time_s": 2.0, "slot_seconds": 4.0}
    account = read(run, started(), left, started(), left).accounts["a"]
    assert (account.wall_time_s, account.slot_seconds) == (4.0, 8.0)


def test_a_damaged_checkpoint_is_told_and_the_pass_of_the_other_one_counts(run: RunDirectory):
    save(run, "a", 1, Position(5, 120))
    save(run, "a", 2, Position(6, 120))
    (run.dnn("a") / "checkpoint.h5").write_bytes(b"torn")
    earlier = read(run)
    assert earlier.resume.dnns["a"].epochs == 1
    assert len(earlier.warnings) == 1
    assert earlier.resume.next_pass == 6


def test_checkpoints_of_other_data_are_refused(run: RunDirectory):
    save(run, "a", 1, Position(5, 120))
    earlier = read(run)
    check_fingerprint(run, earlier, "data-1")
    with pytest.raises(DataError, match=r"fingerprint data-1, now data-2\); restore the dataset, or choose"):
        check_fingerprint(run, earlier, "data-2")


def test_swapped_checkpoints_are_refused(run: RunDirectory):
    save(run, "a", 1, Position(5, 120))
    save(run, "b", 2, Position(5, 120))
    run.dnn("b").rename(run.root / "aside")
    run.dnn("a").rename(run.dnn("b"))
    with pytest.raises(DataError, match=r"dnns/b: the checkpoint is that of 'a'"):
        read(run)


def test_a_lost_checkpoint_is_told(run: RunDirectory):
    (warning,) = read(run, started(), {"event": "checkpoint-written", "dnn": "a"}).warnings
    assert "the checkpoint is gone; a starts anew" in warning


def test_a_retried_dnn_stays_retried_at_the_next_start(run: RunDirectory):
    failed = {"event": "dnn-failed", "dnn": "a", "cause": "nan", "detail": ""}
    assert read(run, started(), failed, retry_failed=True).retried == ("a",)
    later = read(run, started(), failed, {"event": "dnn-retried", "dnn": "a"})
    assert later.resume.dnns["a"].state is DnnState.PENDING
