"""The lines that the user watches."""

import io
import math

import pytest

from hpcbal.events.ensemble import (
    CheckpointWritten,
    Delta,
    DnnFailed,
    EpochDone,
    Finish,
    GroupLeft,
    GroupPlan,
    IdleSlots,
    LeaveOut,
    LeaveRound,
    NextPass,
    PreprocessingMeasured,
    RateMeasured,
    RoundPlan,
    Schedule,
    ScheduleChosen,
    SchedulePrediction,
    Started,
    StartProfiling,
    StartRound,
    StopStream,
    SuspendRequested,
)
from hpcbal.events.history import Position
from hpcbal.telemetry.ledger.dnn_lines import DnnDoneLine
from hpcbal.telemetry.views.progress import Progress


class Watched(Progress):
    """A progress on a clock of ours whose lines can be read."""

    def __init__(self, **options):
        self.now = 0.0
        self.stream = io.StringIO()
        super().__init__(self.stream, 4, clock=lambda: self.now, **options)

    def lines(self):
        """Lines since the last call."""
        text = self.stream.getvalue()
        self.stream.seek(0)
        self.stream.truncate()
        return text.splitlines()


def plan_of(*names, first_slot=0):
    groups = tuple(GroupPlan(name, (first_slot + index,)) for index, name in enumerate(names))
    start = dict.fromkeys(names, Position(7))
    return RoundPlan(3, groups, 7, start, dict.fromkeys(names, 2), 2, dict.fromkeys(names, 512.4))


def done(name, accuracy, pass_index=7, seconds=2.5):
    return EpochDone(name, pass_index, {"val_accuracy": accuracy}, seconds)


def test_a_round_is_shown_with_its_flotilla():
    progress = Watched()
    progress.now = 3661
    progress.handle(StartRound(plan_of("resnet", "densenet")))
    assert progress.lines() == [
        "[1:01:01] round 3: 2 DNNs on 2 of 4 slots, 2 preprocessors, from pass 7",
        "          DNN       slots  epochs so far      predicted",
        "          --------  -----  -------------  -------------",
        "          resnet    1 (0)              2  512 samples/s",
        "          densenet  1 (1)              2  512 samples/s",
    ]


def test_a_choice_is_shown_with_what_the_others_would_cost():
    progress = Watched()
    wide, alone = Schedule("global", Delta(relative=1.0), 0.8), Schedule("independent")
    narrow = Schedule("local", Delta(absolute=20.0))
    found = (
        SchedulePrediction(wide, 33.0, 1),
        SchedulePrediction(alone, 63.0, 3),
        SchedulePrediction(narrow, 36.3, 1, is_cut=True),
    )
    progress.handle(ScheduleChosen(wide, found))
    assert progress.lines() == [
        "[0:00:00] schedule auto: global, delta 100%, alpha 0.8: 0:00:33 in 1 round predicted, "
        "local at least +10%,",
        "          independent +91%",
    ]
    progress.handle(ScheduleChosen(wide, found[:2], wide))
    assert progress.lines()[0].startswith("[0:00:00] schedule still global, delta 100%")


def test_idle_slots_are_shown_with_what_would_change_it():
    progress = Watched()
    progress.handle(IdleSlots(0, 6, ("b",), "b: no rate within delta", "schedule.delta: 14% would do"))
    assert progress.lines() == [
        "[0:00:00] 6 slots idle while 1 DNN waits: b: no rate within delta",
        "          schedule.delta: 14% would do",
    ]


def test_a_pass_is_one_line_when_all_have_reported():
    progress = Watched()
    progress.handle(StartRound(plan_of("a", "b")))
    progress.lines()
    progress.handle(done("b", 0.75, seconds=3.0))
    assert progress.lines() == []
    progress.handle(done("a", 0.5))
    assert progress.lines() == ["[0:00:00] pass 7      3.0 s  val acc  a 0.5000  b 0.7500"]


def test_without_validation_a_pass_shows_the_accuracy_of_training():
    progress = Watched()
    progress.handle(StartRound(plan_of("a")))
    metrics = {"accuracy": 0.25, "loss": 1.0, "val_accuracy": math.nan, "val_loss": math.nan}
    progress.handle(EpochDone("a", 7, metrics, 2.0))
    progress.handle(LeaveRound("a", "converged", ""))
    assert progress.lines()[-2:] == [
        "[0:00:00] pass 7      2.0 s  train acc  a 0.2500",
        "[0:00:00] a done after 3 epochs, best train acc 0.2500",
    ]


def test_columns_stay_when_a_dnn_has_left():
    progress = Watched()
    progress.handle(StartRound(plan_of("a", "b", "c")))
    for name in "abc":
        progress.handle(done(name, 0.5))
    progress.handle(LeaveRound("b", "converged", "patience of 3 epochs"))
    progress.handle(GroupLeft("b"))
    progress.handle(NextPass(("a", "c"), 8))
    before, ended = progress.lines()[-2:]
    assert ended == "[0:00:00] b done after 3 epochs, best val acc 0.5000 (patience of 3 epochs)"
    for name in "ac":
        progress.handle(done(name, 0.6, 8))
    (after,) = progress.lines()
    assert after.index("c 0.6000") == before.index("c 0.5000")
    assert "b 0." not in after


def test_a_pass_does_not_wait_for_a_dnn_that_failed_in_it():
    progress = Watched()
    progress.handle(StartRound(plan_of("a", "b")))
    progress.lines()
    progress.handle(done("a", 0.5))
    progress.handle(DnnFailed("b", "nan", "the loss is NaN at step 3", rank=4))
    failed, line = progress.lines()
    assert failed == "[0:00:00] b FAILED: nan: the loss is NaN at step 3 (rank 4)"
    assert "a 0.5000" in line


def test_checkpoints_are_counted_in_the_next_line_of_a_pass():
    progress = Watched()
    progress.handle(StartRound(plan_of("a", "b")))
    for name in "ab":
        progress.handle(CheckpointWritten(name, 3, Position(8)))
    for name in "ab":
        progress.handle(done(name, 0.5))
    assert progress.lines()[-1].endswith("(saved 2)")


def test_many_dnns_are_summed_up_in_one_line():
    progress = Watched()
    names = [f"dnn-{index}" for index in range(40)]
    progress.handle(StartRound(plan_of(*names)))
    progress.lines()
    for index, name in enumerate(names):
        progress.handle(done(name, index / 40))
    (line,) = progress.lines()
    assert line.endswith("40 DNNs: best dnn-39 0.9750, median 0.5000, worst dnn-0 0.0000")


def test_long_lines_are_wrapped_below_their_first_name():
    progress = Watched()
    names = [f"a-rather-long-name-{index}" for index in range(8)]
    progress.handle(StartRound(plan_of(*names)))
    progress.lines()
    for name in names:
        progress.handle(done(name, 0.5))
    lines = progress.lines()
    assert len(lines) > 1
    assert all(len(line) <= 125 for line in lines)
    assert {line.index("a-rather") for line in lines} == {lines[0].index("a-rather")}


def test_a_wave_of_profiling_is_two_lines():
    progress = Watched()
    progress.handle(Started())
    progress.handle(StartProfiling((GroupPlan("a", (0,)), GroupPlan("b", (1, 2)), GroupPlan("c", (3,)))))
    progress.handle(RateMeasured("a", 1, 100.4))
    progress.handle(RateMeasured("b", 2, 180.0))
    assert len(progress.lines()) == 1
    progress.handle(DnnFailed("c", "oom", "too large"))
    progress.handle(GroupLeft("c"))
    assert progress.lines() == [
        "[0:00:00] c FAILED: oom: too large",
        "[0:00:00] measured: a on 1 slot 100 samples/s, b on 2 slots 180 samples/s",
    ]


def test_a_rate_of_preprocessing_is_shown_again_where_it_differs_by_more_than_a_quarter():
    progress = Watched()
    for rate in (3000.0, 3500.0, 2000.0, 1900.0):
        progress.handle(PreprocessingMeasured(rate))
    assert progress.lines() == [f"[0:00:00] one preprocessor makes {rate} samples/s" for rate in (3000, 2000)]


def test_a_slot_that_is_left_out_is_reported():
    progress = Watched()
    progress.handle(LeaveOut("a", 3))
    assert progress.lines() == [
        "[0:00:00] a is faster without slot 3 and leaves it out from the next pass on"
    ]


def test_the_end_of_a_round_shows_the_results_of_its_dnns():
    progress = Watched()
    progress.handle(StartRound(plan_of("a", "b", "c")))
    progress.handle(DnnFailed("a", "error", "bug"))
    progress.handle(LeaveRound("b", "converged"))
    progress.handle(LeaveRound("c", "regroup"))
    progress.now = 65
    progress.handle(StopStream(3))
    assert progress.lines()[-1] == "[0:01:05] round 3 over after 0:01:05: 1 done, 1 failed, 1 to continue"


@pytest.mark.parametrize(
    ("events", "last"),
    [
        ([Finish("done")], "finished after 0:00:09: 0 done in this start"),
        (
            [DnnFailed("a", "error", "bug"), Finish("failed-dnns")],
            "finished after 0:00:09: 0 done, 1 failed",
        ),
        (
            [SuspendRequested("SIGTERM"), Finish("suspended")],
            "suspended after 0:00:09: run the same command again to resume",
        ),
    ],
)
def test_the_end_says_how_it_ended(events, last):
    progress = Watched()
    progress.now = 9
    for event in events:
        progress.handle(event)
    assert progress.lines()[-1].startswith(f"[0:00:09] {last}")


def test_a_run_that_an_error_has_stopped_does_not_resume_by_itself():
    progress = Watched()
    progress.note_error()
    progress.handle(Finish("suspended"))
    assert progress.lines()[-1].endswith(
        "stopped after 0:00:00 by the error below: fix its cause, then run the same command again"
    )


def test_notes_are_indented_below_their_time():
    progress = Watched()
    progress.note("six DNNs\noutput: runs/x")
    assert progress.lines() == ["[0:00:00] six DNNs", "          output: runs/x"]


def test_colours_only_on_demand():
    progress = Watched(color=True)
    progress.handle(DnnFailed("a", "error", "bug"))
    assert progress.lines() == ["[0:00:00] \x1b[31ma FAILED: error: bug\x1b[0m"]


def test_a_stream_that_breaks_ends_the_lines_not_the_run():
    class Broken(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    progress = Progress(Broken(), 4)
    progress.note("one")
    progress.note("two")


def test_a_stream_that_cannot_write_a_letter_writes_a_question_mark():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    Progress(stream, 4).note("Größe")
    assert raw.getvalue() == b"[0:00:00] Gr??e\n"


def test_a_dnn_that_converges_as_the_run_stops_is_counted_once():
    progress = Watched()
    progress.handle(StartRound(plan_of("a", "b")))
    progress.handle(done("a", 0.75))
    progress.lines()
    for _ in range(2):
        progress.handle(DnnDoneLine("a", "max_epochs (3)", 3))
    progress.handle(StopStream(3))
    progress.handle(Finish("done"))
    shown = [line.partition("] ")[2] for line in progress.lines()]
    assert shown[0] == "a done after 3 epochs, best val acc 0.7500 (max_epochs (3))"
    assert shown[-2].endswith(": 1 done, 1 to continue")
    assert shown[-1].endswith(": 1 done in this start")
    assert len(shown) == 4
