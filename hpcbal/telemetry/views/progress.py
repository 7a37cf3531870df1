"""Print the progress of an ensemble: short lines with times, for a terminal or a batch log.

There is one line per pass with all DNNs side by side, in columns that stay for the whole round, and one line
per decision. Everything else is in the files.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from hpcbal.events.ensemble import (
    CheckpointWritten,
    DnnFailed,
    EpochDone,
    Finish,
    GroupLeft,
    IdleSlots,
    LeaveOut,
    LeaveRound,
    PreprocessingMeasured,
    RateMeasured,
    RoundPlan,
    ScheduleChosen,
    SchedulePrediction,
    StartGroup,
    StartProfiling,
    StartRound,
    StopStream,
    SuspendRequested,
)
from hpcbal.events.history import shows_more_better
from hpcbal.events.line import Line
from hpcbal.events.members import DnnAdded, SearchEnded, StopAsked
from hpcbal.safe_text import printable
from hpcbal.telemetry.files.json_lines import duration_text
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.ledger.dnn_lines import DnnDoneLine, DnnPrunedLine, DnnStoppedLine, ModelWarningLine
from hpcbal.telemetry.views.summary import main_metric_of, short_title
from hpcbal.telemetry.views.table import count_text, early_text, format_table, key_line, number_text


def choice_cells(choice: ScheduleChosen) -> list[str]:
    """Describe a choice, and how much longer the best schedule of each other paradigm would take.

    Returns: pieces of one sentence, to be joined by commas.
    """
    chosen, *others = choice.best_by_paradigm()
    is_kept = choice.previous == choice.schedule
    left = duration_text(chosen.remaining_s)
    if chosen.schedule.has_rounds:
        left += f" in {count_text(chosen.num_rounds, 'round')}"
    first = f"schedule {'still' if is_kept else 'auto:'} {choice.schedule}: {left} predicted"
    return [first, *(_longer(other, chosen) for other in others)]


def _longer(other: SchedulePrediction, chosen: SchedulePrediction) -> str:
    """`independent +91%`, or `local at least +10%` if the prediction was given up."""
    share = other.remaining_s / chosen.remaining_s - 1.0 if chosen.remaining_s > 0.0 else 0.0
    return f"{other.schedule.paradigm} {'at least ' if other.is_cut else ''}{100.0 * share:+.0f}%"


_WIDTH = 110
_MAX_COLUMNS = 12  # most DNNs of a round that the lines of passes show individually
_OTHER_PREPROCESSING = (
    0.25  # by so much a rate of preprocessing differs from the one shown before it is shown again
)
_GREEN, _RED, _YELLOW = "32", "31", "33"


class Progress:
    """Converts events and instructions to lines, in the order in which they happen.

    It takes an event before the state machine handles it, and an instruction before it is performed. If
    writing fails (a closed terminal, a full disk), the lines end, but the run continues.

    Args:
        stream: rank 0's stdout or stderr.
        num_slots: number of slots in the cluster.
        color: whether to mark important lines with colours; only for a terminal.
        clock: monotonic seconds, for tests. Times in the lines count from the construction.
    """

    def __init__(
        self,
        stream: TextIO,
        num_slots: int,
        *,
        color: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream: TextIO | None = stream
        self._num_slots = num_slots
        self._color = color
        self._clock = clock
        self._started_s = clock()
        self._round: _Round | None = None
        self._alone_epochs: dict[str, int] = {}
        self._rates: list[str] = []
        self._shown_preprocessing = 0.0  # samples/s
        self._profiling: set[str] = set()
        self._best: dict[str, tuple[str, float]] = {}  # title and value, by DNN
        self._done: set[str] = set()
        self._early: dict[str, str] = {}  # DNNs that were pruned or stopped, and which
        self._num_failed = 0
        self._has_error = False

    def note_error(self) -> None:
        """Remember that an error ends the run, so the same command alone does not continue it."""
        self._has_error = True

    def note(self, text: str, color: str = "") -> None:
        """Print `text` with the time and printable; its further lines are indented.

        Names and messages of user code get here: what they hold must not act on the terminal.
        """
        first, *rest = self._paint(color, printable(text)).split("\n")
        stamp = f"[{duration_text(self._clock() - self._started_s)}] "
        self._print([stamp + first, *(" " * len(stamp) + line for line in rest)])

    def _note_done(self, dnn_id: str, num_epochs: int, detail: str) -> None:
        """Show once that a DNN is done; it may be so as the run stops or starts, without a decision."""
        if dnn_id in self._done:
            return
        self._done.add(dnn_id)
        if self._round is not None:
            self._round.num_done += 1
        why = f" ({detail})" if detail else ""
        title, value = self._best.get(dnn_id, ("val acc", None))
        best = "" if value is None else f", best {title} {number_text(value)}"  # unknown without a ledger
        self.note(f"{dnn_id} done after {count_text(num_epochs, 'epoch')}{best}{why}", _GREEN)

    def _note_early(self, dnn_id: str, what: str, num_epochs: int, detail: str) -> None:
        """Show once that a DNN ended early; it may be while it waits, or as the run starts."""
        if dnn_id in self._early:
            return
        self._early[dnn_id] = what
        if self._round is not None and dnn_id in self._round.order:
            self._round.stopped.add(dnn_id)
        self._note_stop(dnn_id, what, num_epochs, detail)

    def _note_stop(self, dnn_id: str, what: str, num_epochs: int, detail: str) -> None:
        title, value = self._best.get(dnn_id, ("val acc", None))
        best = "" if value is None else f", best {title} {number_text(value)}"  # unknown without a ledger
        self.note(f"{dnn_id} {what} after {count_text(num_epochs, 'epoch')}{best} ({detail})")

    def _note_idle(self, idle: IdleSlots) -> None:
        """Show that slots are idle although DNNs wait, and what would change it."""
        many = f"{count_text(idle.num_idle, 'slot')} idle while {count_text(len(idle.waiting), 'DNN')}"
        wait = "waits" if len(idle.waiting) == 1 else "wait"
        self.note(f"{many} {wait}: {idle.why}\n{idle.change}", _YELLOW)

    def warn(self, text: str) -> None:
        """Print a warning with the time."""
        self.note(f"warning: {text}")

    def handle(self, message: Line) -> None:
        """Show one event, instruction or fact; most print a line, some only contribute to a later line."""
        match message:
            case StartProfiling(groups):
                self._profiling = {group.dnn_id for group in groups}
                jobs = ", ".join(f"{g.dnn_id} on {count_text(len(g.slots), 'slot')}" for g in groups)
                self.note(_wrap("profiling: ", jobs.split(", ")))
            case RateMeasured(dnn_id, num_slots, rate):
                self._rates.append(f"{dnn_id} on {count_text(num_slots, 'slot')} {rate:.0f} samples/s")
                self._profiled(dnn_id)
            case PreprocessingMeasured(rate):
                if abs(rate - self._shown_preprocessing) > _OTHER_PREPROCESSING * self._shown_preprocessing:
                    self._shown_preprocessing = rate
                    self.note(f"one preprocessor makes {rate:.0f} samples/s")
            case ScheduleChosen():
                self.note(_wrap("", choice_cells(message)))
            case StartRound(plan):
                self._start_round(plan)
            case StartGroup(plan):
                self._start_alone(plan)
            case EpochDone():
                self._epoch_done(message)
            case CheckpointWritten(dnn_id) if self._round is not None:
                self._round.saved.append(dnn_id)
            case LeaveOut(dnn_id, slot):
                faster = f"{dnn_id} is faster without slot {slot}"
                self.note(f"{faster} and leaves it out from the next pass on", _YELLOW)
            case LeaveRound():
                self._leave(message)
            case GroupLeft(dnn_id):
                self._profiled(dnn_id)
                self._gone(dnn_id)
            case DnnFailed():
                self._failed(message)
            case StopStream():
                self._stop_round()
            case DnnAdded():
                drawn = message.drawn or {}
                values = ", ".join(f"{key} {value}" for key, value in drawn.items())
                why = f", proposed: {values}" if drawn else ""
                self.note(f"{message.dnn_id} joins the run{why}")
            case SearchEnded(reason):
                self.warn(f"no more DNNs are proposed: {reason}")
            case StopAsked(dnn_ids):
                self.note(_wrap("asked to stop ", dnn_ids), _YELLOW)
            case SuspendRequested(reason):
                self.note(f"stopping ({reason}): saving every DNN in training", _YELLOW)
            case Finish(outcome):
                self._finish(outcome)
            case IdleSlots():
                self._note_idle(message)
            case DnnDoneLine(dnn_id, detail, epochs):
                self._note_done(dnn_id, epochs, detail)
            case DnnPrunedLine(dnn_id, detail, epochs):
                self._note_early(dnn_id, "pruned", epochs, detail)
            case DnnStoppedLine(dnn_id, detail, epochs):
                self._note_early(dnn_id, "stopped", epochs, detail)
            case ModelWarningLine(_, detail):
                self.warn(detail)

    def _profiled(self, dnn_id: str) -> None:
        """Record that a group of a profiling wave has reported; print the rates once all have."""
        self._profiling.discard(dnn_id)
        if not self._profiling and self._rates:
            self.note(_wrap("measured: ", self._rates))
            self._rates = []

    def _start_round(self, plan: RoundPlan) -> None:
        self._round = _Round(plan, self._clock())
        num_busy = sum(len(group.slots) for group in plan.groups)
        makers = count_text(plan.num_preprocessors, "preprocessor")
        rates = plan.predicted_rate_samples_per_s
        rows = [
            [
                group.dnn_id,
                f"{len(group.slots)} ({' '.join(map(str, group.slots))})",
                str(plan.epochs.get(group.dnn_id, 0)),
                f"{rates[group.dnn_id]:.0f} samples/s" if group.dnn_id in rates else "not known",
            ]
            for group in plan.groups
        ]
        table = format_table(["DNN", "slots", "epochs so far", "predicted"], rows, right={2, 3})
        title = (
            f"round {plan.index}: {count_text(len(plan.groups), 'DNN')} on {num_busy} of "
            f"{count_text(self._num_slots, 'slot')}, {makers}, from pass {plan.first_pass}"
        )
        self.note("\n".join([title, *table]))

    def _start_alone(self, plan: RoundPlan) -> None:
        (group,) = plan.groups
        self._alone_epochs[group.dnn_id] = plan.epochs[group.dnn_id]
        slots = ", ".join(map(str, group.slots))
        on = f"slot {slots}" if len(group.slots) == 1 else f"slots {slots}"
        self.note(f"{group.dnn_id} on {on}, from pass {plan.first_pass}")

    def _epoch_done(self, event: EpochDone) -> None:
        title, key = _shown_metric([event])
        accuracy = event.metrics.get(key, math.nan)
        if not math.isnan(accuracy):
            _, best = self._best.get(event.dnn_id, (title, accuracy))
            better = max if shows_more_better(key) else min
            self._best[event.dnn_id] = (title, better(accuracy, best))
        if self._round is not None:
            self._round.epochs[event.dnn_id] = self._round.epochs.get(event.dnn_id, 0) + 1
            self._round.reports[event.dnn_id] = event
            self._show_pass_if_complete()
        elif event.dnn_id in self._alone_epochs:
            self._alone_epochs[event.dnn_id] += 1
            self.note(
                f"{event.dnn_id} pass {event.pass_index:<3d} {event.seconds:6.1f} s  "
                f"{title} {number_text(accuracy)}"
            )

    def _show_pass_if_complete(self) -> None:
        round_ = self._round
        if round_ is None or not round_.reports or not round_.active <= round_.reports.keys():
            return
        reports, round_.reports = round_.reports, {}
        title, key = _shown_metric(reports.values())
        accuracies = {name: event.metrics.get(key, math.nan) for name, event in reports.items()}
        first = next(iter(reports.values()))
        seconds = max(event.seconds for event in reports.values())
        head = f"pass {first.pass_index:<3d} {seconds:6.1f} s  {title}  "
        saved = f"  (saved {len(set(round_.saved))})" if round_.saved else ""
        round_.saved.clear()
        if len(round_.order) > _MAX_COLUMNS:
            self.note(head + _summary(accuracies) + saved)
            return
        cells = [
            f"{name} {number_text(accuracies[name])}" if name in accuracies else " " * (len(name) + 7)
            for name in round_.order
        ]
        self.note(_wrap(head, cells, "  ") + saved)

    def _leave(self, message: LeaveRound) -> None:
        dnn_id = message.dnn_id
        epochs_by_name = self._round.epochs if self._round is not None else self._alone_epochs
        if message.reason == "converged":
            self._note_done(dnn_id, epochs_by_name.get(dnn_id, 0), message.detail)
        elif message.reason in ("pruned", "stopped"):
            self._note_early(dnn_id, message.reason, epochs_by_name.get(dnn_id, 0), message.detail)
        elif message.reason == "paused":
            if self._round is not None:
                self._round.stopped.add(dnn_id)
            self._note_stop(dnn_id, "paused", epochs_by_name.get(dnn_id, 0), message.detail)
        self._gone(dnn_id)

    def _failed(self, event: DnnFailed) -> None:
        self._num_failed += 1
        detail = key_line(event.detail)
        where = ""
        if event.rank is not None:
            has_more = "\n" in event.detail.strip()
            log = f": logs/{RunDirectory(Path()).rank_log(event.rank).name}" if has_more else ""
            where = f" (rank {event.rank}{log})"
        self.note(f"{event.dnn_id} FAILED: {event.cause}: {detail}{where}", _RED)
        self._profiled(event.dnn_id)
        if self._round is not None:
            self._round.num_failed += event.dnn_id in self._round.order
        self._gone(event.dnn_id)

    def _gone(self, dnn_id: str) -> None:
        """Record that a group has stopped training, so the line of this pass does not wait for it."""
        if self._round is not None:
            self._round.active.discard(dnn_id)
            self._show_pass_if_complete()

    def _stop_round(self) -> None:
        round_ = self._round
        if round_ is None:
            return
        round_.active.clear()
        self._show_pass_if_complete()
        self._round = None
        num_left = len(round_.order) - round_.num_done - len(round_.stopped) - round_.num_failed
        parts = [f"{round_.num_done} done"]
        if round_.stopped:
            parts.append(f"{len(round_.stopped)} paused, pruned or stopped")
        if round_.num_failed:
            parts.append(f"{round_.num_failed} failed")
        if num_left:
            parts.append(f"{num_left} to continue")
        took = duration_text(self._clock() - round_.started_s)
        self.note(f"round {round_.plan.index} over after {took}: {', '.join(parts)}")

    def _finish(self, outcome: str) -> None:
        took = duration_text(self._clock() - self._started_s)
        if outcome == "profiled":
            return  # the next line says where the rates are
        if outcome == "suspended":
            text = f"suspended after {took}: run the same command again to resume"
            if self._has_error:
                text = (
                    f"stopped after {took} by the error below: fix its cause, then run the same command again"
                )
            self.note(text, _RED if self._has_error else _YELLOW)
        elif self._num_failed:
            counts = f"{self._counts()}, {self._num_failed} failed"
            self.note(f"finished after {took}: {counts} in this start", _RED)
        else:
            self.note(f"finished after {took}: {self._counts()} in this start", _GREEN)

    def _counts(self) -> str:
        early = list(self._early.values())
        return f"{len(self._done)} done{early_text(early.count('pruned'), early.count('stopped'))}"

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._color and code else text

    def _print(self, lines: Sequence[str]) -> None:
        if self._stream is None:
            return
        text = "".join(f"{line.rstrip()}\n" for line in lines)
        encoding = getattr(self._stream, "encoding", None) or "ascii"
        try:
            self._stream.write(text.encode(encoding, "replace").decode(encoding))
            self._stream.flush()
        except (OSError, ValueError):
            self._stream = None


class _Round:
    """The state of the current round."""

    def __init__(self, plan: RoundPlan, started_s: float) -> None:
        self.plan = plan
        self.started_s = started_s
        self.order = [group.dnn_id for group in plan.groups]
        self.active = set(self.order)
        self.epochs = {name: plan.epochs.get(name, 0) for name in self.order}
        self.reports: dict[str, EpochDone] = {}
        self.saved: list[str] = []
        self.num_done = 0
        self.stopped: set[str] = set()  # paused, pruned or stopped
        self.num_failed = 0


def _shown_metric(events: Iterable[EpochDone]) -> tuple[str, str]:
    """Title and key of the metric to show: that of the training samples if there is no validation data."""
    key = main_metric_of([[event.metrics] for event in events])
    return short_title(key), key


def _summary(accuracies: Mapping[str, float]) -> str:
    """The best, median and worst of many DNNs."""
    known = sorted((value, name) for name, value in accuracies.items() if not math.isnan(value))
    if not known:
        return f"{count_text(len(accuracies), 'DNN')}, none known"
    (worst, worst_name), (best, best_name) = known[0], known[-1]
    median = known[len(known) // 2][0]
    return (
        f"{count_text(len(accuracies), 'DNN')}: best {best_name} {number_text(best)}, "
        f"median {number_text(median)}, worst {worst_name} {number_text(worst)}"
    )


def _wrap(head: str, cells: Sequence[str], separator: str = ", ") -> str:
    """`head` and the cells, wrapped at the width; further lines start below the first cell."""
    lines, line = [], head
    for number, cell in enumerate(cells):
        piece = cell + (separator if number < len(cells) - 1 else "")
        if len(line) > len(head) and len(line) + len(piece) > _WIDTH:
            lines.append(line)
            line = " " * len(head)
        line += piece
    return "\n".join([*lines, line])
