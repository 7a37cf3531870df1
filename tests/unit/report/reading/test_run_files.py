"""The report of a run, read from its files in any state."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ledger_lines import plan_of

from hpcbal.errors import InputError, LedgerError
from hpcbal.events.ensemble import GroupPlan
from hpcbal.events.history import BalanceFacts, Straggler
from hpcbal.report.model import ReportData
from hpcbal.report.page.page import render_page, write_page, write_plots
from hpcbal.report.reading.run_files import read_run
from hpcbal.telemetry.views.ensemble_table import new_status
from hpcbal.telemetry.views.results import ResultRow, write_results
from hpcbal.telemetry.views.status import write_status

EPOCH_0 = 1_790_000_000.0
Shares = Callable[[ReportData, int], dict[str, float]]


def test_every_second_of_a_slot_is_accounted_for(finished: ReportData, shares: Shares) -> None:
    assert finished.duration_s == pytest.approx(10.0)
    # a holds slot 0 from 1 to 9: its epoch takes 2..5, one second of it without data.
    assert shares(finished, 0) == {
        "training": 2.0,
        "data": 1.0,
        "starting": 1.0,
        "peers": 4.0,
        "idle": 2.0,
    }
    # b was in its first pass when it failed.
    assert shares(finished, 1) == {"training": 5.0, "idle": 5.0}


def test_what_became_of_each_dnn(finished: ReportData) -> None:
    a, b = finished.jobs
    assert (a.name, a.state, a.epochs, a.best) == ("a", "done", 1, 0.7)
    assert (a.wall_time_s, a.slot_seconds) == pytest.approx((8.0, 8.0))
    assert (b.state, b.cause, b.epochs) == ("failed", "nan", 0)
    assert finished.failed == (b,)
    assert finished.state == "done, some DNNs failed"


def test_the_best_epoch_the_last_value_and_the_settings_of_each_dnn(history: Any, tmp_path: Path) -> None:
    history.start(0).round(0, 0, {"a": (0,), "b": (1,)})
    for at, accuracy in enumerate((0.5, 0.75, 0.625), 1):
        history.epoch(at, "a", seconds=1.0, accuracy=accuracy)
    rows = [ResultRow(name, "running", 0, None, 0.0, 0.0, settings={"seed": name}) for name in "ab"]
    write_results(tmp_path / "results.csv", rows)
    data = history.read()
    a, b = data.jobs
    assert (a.best, a.best_epoch, a.final, a.settings) == (0.75, 2, 0.625, {"seed": "a"})
    assert (b.best, b.best_epoch, b.final, b.settings) == (None, None, None, {"seed": "b"})
    table = render_page(data).partition('<table id="jobs">')[2]
    assert "<th>seed</th>" in table
    assert (
        '0.7500</td><td data-key="seed">a</td><td class="number minor">2</td>'
        '<td class="number minor">0.6250</td>' in table
    )
    (tmp_path / "results.csv").write_text("a,b\n1,2\n")
    assert history.read().setting_keys == ()


@pytest.mark.parametrize("num_settings", [2, 3])
def test_rows_of_many_settings_can_be_blocks_on_narrow_screens(
    history: Any, tmp_path: Path, num_settings: int
) -> None:
    history.start(0).round(0, 0, {"a": (0,), "b": (1,)})
    settings = {f"args.x{i}": i for i in range(num_settings)}
    rows = [
        ResultRow(name, "running", 0, None, 0.0, 0.0, settings={k: f"{name}{v}" for k, v in settings.items()})
        for name in "ab"
    ]
    write_results(tmp_path / "results.csv", rows)
    page = render_page(history.read())
    assert ('<table id="jobs" class="many">' in page) == (num_settings > 2)
    for key, value in settings.items():  # a block has no line of titles
        assert f'<td data-key="{key}">a{value}</td>' in page


@pytest.mark.parametrize("kind", ["validation", "training"])
def test_losses_are_those_of_the_validation_samples_if_there_are_any(history: Any, kind: str) -> None:
    history.start(0).round(0, 0, {"a": (0,)})
    metrics = {"loss": 2.0, "accuracy": 0.25, "val_loss": None, "val_accuracy": None}
    if kind == "validation":
        metrics |= {"val_loss": 1.5, "val_accuracy": 0.5}
    history.add(1, "epoch-done", dnn_id="a", metrics=metrics)
    history.add(2, "epoch-done", dnn_id="a", metrics={**metrics, "loss": 3.0, "accuracy": 0.75})
    data = history.read()
    (a,) = data.jobs
    if kind == "validation":
        assert (a.best, a.best_epoch, a.best_loss, a.final_loss) == (0.5, 1, 1.5, 1.5)
    else:
        assert (a.best, a.best_epoch, a.best_loss, a.final_loss) == (0.75, 2, 2.0, 3.0)
    assert f"Losses are those of the {kind} samples" in render_page(data)


@pytest.mark.parametrize(("code", "how"), [(75, "run the same command again"), (2, "fix its cause and run")])
def test_a_stopped_run_shows_how_it_goes_on(history: Any, code: int, how: str) -> None:
    data = history.start(0).add(2, "run-finished", outcome="suspended", exit_code=code).read()
    assert data.state == "stopped"
    assert how in data.note


def test_rates_leave_out_the_epoch_that_builds_the_network(history: Any) -> None:
    history.start(0).round(1, 0, {"a": (0,), "b": (1,)})
    history.epoch(11, "a", seconds=10.0).epoch(12, "b", seconds=11.0)
    history.epoch(13, "a", seconds=2.0, wait_s=1.0).leave(14, "a").leave(14, "b")
    history.round(14, 1, {"a": (1,)}, a=2).epoch(24, "a", seconds=10.0).epoch(
        26, "a", seconds=2.0, wait_s=1.0
    )
    data = history.read()
    a, b = data.rates
    assert (a.job, a.num_slots, a.planned, a.measured) == ("a", 1, 100.0, pytest.approx(800 / 0.9))
    assert (b.job, b.planned, b.measured) == ("b", 100.0, None)
    page = render_page(data)
    assert "b on 1 slot: planned 100 samples/s, not measured" in page
    assert "+789 %" in page


def test_overheads_are_shares_of_all_slot_time(finished: ReportData) -> None:
    shares = {overhead.name: overhead.share for overhead in finished.overheads}
    assert shares == pytest.approx(
        {"profiling": 0.0, "scheduling": 0.05, "starting": 0.05, "checkpointing": 0.0}
    )


def test_a_round_asks_of_the_stream_what_its_slowest_dnn_takes(history: Any) -> None:
    history.start(0).round(0, 0, {"a": (0,), "b": (1,)})
    history.epoch(4, "a", 4.0).epoch(5, "b", 5.0).add(5, "preprocessing-measured", samples_per_s=400.0)
    (only,) = history.leave(5, "a").leave(5, "b").read().rounds
    assert only.stream_samples_per_s == pytest.approx(200.0)


def test_checkpoints_and_profiling_have_shares_of_their_own(history: Any, shares: Shares) -> None:
    history.start(0).add(0, "profiling-started", groups=(GroupPlan("a", (0, 1)),))
    history.leave(3, "a", reported=False).round(3, 0, {"a": (0,)}).epoch(5, "a", 2.0)
    history.add(6, "checkpoint-written", dnn_id="a", epoch=1, seconds=0.9, held_s=0.5).leave(6, "a")
    data = history.read()
    assert shares(data, 0) == {"profiling": 3.0, "training": 2.0, "checkpoint": 0.5, "peers": 0.5}
    assert shares(data, 1) == {"profiling": 3.0, "idle": 3.0}
    assert data.spans[0].kind == "profiling"


def test_a_resumed_run_has_no_pause_and_no_lost_epochs(history: Any) -> None:
    history.start(0).round(1, 0, {"a": (0,)}).epoch(4, "a", 3.0, accuracy=0.4).epoch(7, "a", 3.0)
    # Killed at 7; the second epoch was lost. The job waits for an hour in the queue.
    history.start(3600, resumed=True).round(3601, 1, {"a": (0, 1)}, a=1)
    history.epoch(3604, "a", 3.0, accuracy=0.6).leave(3605, "a").add(3605, "dnn-done", dnn_id="a", detail="")
    history.add(3606, "run-finished", outcome="done", exit_code=0)
    data = history.read()
    assert data.start_s == pytest.approx((0.0, 7.0))
    assert data.duration_s == pytest.approx(13.0)
    assert [point.metrics["val_accuracy"] for point in data.jobs[0].curve] == [0.4, 0.6]
    assert {(s.slot, round(s.start_s), round(s.end_s)) for s in data.spans} == {
        (0, 1, 7),
        (0, 8, 12),
        (1, 8, 12),
    }
    assert [(round(r.start_s), round(r.end_s)) for r in data.rounds] == [(1, 7), (8, 13)]
    assert data.state == "done"


def test_a_retried_dnn_has_not_failed_any_more(history: Any) -> None:
    history.start(0).add(1, "dnn-failed", dnn_id="a", cause="oom", detail="x")
    history.start(2, resumed=True).add(2, "dnn-retried", dnn_id="a").round(3, 0, {"a": (0,)})
    assert history.read().failed == ()


def test_a_killed_run_is_interrupted_and_says_so(history: Any) -> None:
    history.start(0).round(1, 0, {"a": (0,)}).write()
    status = new_status("birds", 2, now=EPOCH_0)
    status |= {"phase": "training", "host": "elsewhere"}
    write_status(history.directory / "status.json", status, now=EPOCH_0 + 5)
    data = read_run(history.directory, now=EPOCH_0 + 500)
    assert data.state == "interrupted"
    assert "run the same command again to resume it" in data.note


@pytest.mark.parametrize("phase", ["finished", "suspended"])
def test_a_start_that_was_killed_at_once_is_interrupted(history: Any, phase: str) -> None:
    """The status is that of the start before."""
    history.start(0).round(1, 0, {"a": (0,)}).add(2, "run-finished", outcome="suspended").start(50).write()
    status = new_status("birds", 2, now=EPOCH_0)
    status |= {"phase": phase, "outcome": "suspended", "exit_code": 75, "host": "elsewhere"}
    write_status(history.directory / "status.json", status, now=EPOCH_0 + 2)
    assert read_run(history.directory, now=EPOCH_0 + 500).state == "interrupted"


def test_a_living_run_lasts_until_its_status(history: Any) -> None:
    history.start(0).round(1, 0, {"a": (0,)}).write()
    status = new_status("birds", 2, now=EPOCH_0)
    status |= {"phase": "training", "host": "elsewhere"}
    write_status(history.directory / "status.json", status, now=EPOCH_0 + 5)
    data = read_run(history.directory, now=EPOCH_0 + 6)
    assert (data.state, data.duration_s) == ("running", pytest.approx(5.0))
    assert data.spans[0].end_s == pytest.approx(5.0)


def test_a_prediction_stands_beside_what_came(history: Any) -> None:
    history.start(0).add(1, "prediction", wall_time_s=8.5, remaining_s=7.0)
    before = history.read().prediction
    assert (before.predicted_s, before.actual_s) == (pytest.approx(8.0), None)
    history.start(100, resumed=True).add(110, "run-finished", outcome="done", predicted_s=9.0, actual_s=12.0)
    after = history.read().prediction
    assert (after.predicted_s, after.actual_s) == pytest.approx((10.0, 13.0))


def test_the_sums_at_the_end_report_what_a_preprocessor_makes(history: Any) -> None:
    history.start(0).add(1, "preprocessing-measured", samples_per_s=100.0)
    assert history.read().preprocessing.samples_per_s == 100.0
    history.add(9, "run-finished", outcome="done", num_preprocessed=900, preprocessing_s=6.0)
    assert history.read().preprocessing.samples_per_s == pytest.approx(150.0)


def test_groups_outside_of_rounds_are_drawn_too(history: Any) -> None:
    data = history.start(0).add(1, "group-started", plan=plan_of({"a": (1,)})).leave(4, "a").read()
    assert [(span.slot, span.job) for span in data.spans] == [(1, "a")]
    assert data.rounds == ()


def test_several_nodes_have_names(history: Any) -> None:
    assert history.start(0, slots=(2, 1)).read().slot_names == ("n0:0", "n0:1", "n1:0")
    assert history.start(1, slots=(2,)).read().slot_names == ("n0:0", "n0:1", "n1:0")


def test_a_copy_gives_the_same_report(finished: ReportData, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(tmp_path / "ledger.jsonl", copy)
    assert read_run(copy) == finished


def test_a_torn_last_line_is_left_out(history: Any, tmp_path: Path) -> None:
    history.start(0).round(1, 0, {"a": (0,)}).write()
    with (tmp_path / "ledger.jsonl").open("a") as file:
        file.write('{"schema": 1, "seq": 9, "ti')
    assert read_run(tmp_path).state == "interrupted"


@pytest.mark.parametrize(
    ("make", "reported"),
    [
        (lambda path: None, "no such directory"),
        (lambda path: path.write_text("x"), "is a file"),
        (lambda path: path.mkdir(), "not the output directory of a run"),
        (lambda path: (path.mkdir(), (path / "config.yaml").touch()), "has not started yet"),
        (lambda path: (path.mkdir(), (path / "ledger.jsonl").touch()), "no run has started here yet"),
    ],
)
def test_what_is_no_run_is_refused(make: Callable[[Path], Any], reported: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    make(path)
    with pytest.raises(InputError, match=reported):
        read_run(path)


def test_a_damaged_line_is_refused_by_file_and_number(history: Any, tmp_path: Path) -> None:
    history.start(0).round(1, 0, {"a": (0,)}).write()
    with (tmp_path / "ledger.jsonl").open("a") as file:
        file.write("{}\n")
    with pytest.raises(LedgerError, match=r"ledger\.jsonl:3: schema is absent, allowed: 2"):
        read_run(tmp_path)


def test_a_line_that_contradicts_those_before_it_is_refused(history: Any) -> None:
    history.start(0).round(2, 0, {"a": (7,)})
    with pytest.raises(LedgerError, match=r"line 1 \(round-started\) .*slots \[7\] of a cluster that has 2"):
        history.read()


def test_shares_for_another_number_of_slots_are_refused(history: Any) -> None:
    history.start(0).round(2, 0, {"a": (0,)}).epoch(3, "a", 1.0, balance=BalanceFacts((3, 4)))
    with pytest.raises(LedgerError, match=r"line 2 \(epoch-done\) contradicts earlier lines"):
        history.read()


def test_numbers_that_could_not_be_measured_do_not_spoil_page_and_charts(
    history: Any, tmp_path: Path
) -> None:
    nan = math.nan
    history.start(0).round(1, 0, {"a": (0, 1)})
    history.add(2, "prediction", wall_time_s=nan, remaining_s=nan)
    history.add(2, "preprocessing-measured", samples_per_s=nan)
    balance = BalanceFacts((3, 4), decided_s=nan, fit_s=nan)
    history.epoch(5, "a", nan, wait_s=nan, balance=balance, straggler=Straggler(1, "compute", nan))
    history.epoch(7, "a", 2.0, accuracy=0.25)
    history.add(8, "checkpoint-written", dnn_id="a", seconds=nan, held_s=nan)
    history.leave(9, "a")
    history.add(9, "run-finished", outcome="done", decided_s=nan, predicted_s=nan, actual_s=nan)
    data = history.read()
    assert data.jobs[0].best == 0.5
    write_page(data, tmp_path / "page.html")
    assert write_plots(data, tmp_path / "plots")
    assert not re.search(r"\bnan\b", (tmp_path / "page.html").read_text())


def test_an_evaluation_is_read_and_a_damaged_one_is_a_problem_of_the_page(history: Any) -> None:
    path = history.directory / "evaluation.json"
    history.start(0)
    before = history.read()
    assert (before.evaluation, before.problem) == (None, "")
    path.write_text("{}")
    after = history.read()
    assert after.evaluation is None
    assert "not an evaluation of this hpcbal" in after.problem
