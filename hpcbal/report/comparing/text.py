"""A comparison of runs as tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpcbal.report.model import EpochPoint
from hpcbal.telemetry.files.json_lines import duration_text
from hpcbal.telemetry.views.evaluation import fold_sentences
from hpcbal.telemetry.views.table import count_text, early_text, format_table, number_text


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run as a whole.

    Attributes:
        label: short and unique in the comparison.
        directory: as it was given.
        state: as in the report: done, stopped, running, ...
        num_done, num_pruned, num_stopped, num_failed, num_dnns: DNNs.
        num_slots: slots of the largest allocation.
        starts: number of starts.
        duration_s: all starts together.
        slot_hours: hours in which DNNs held slots, times their number: GPU-hours where slots are GPUs.
        best_dnn: the DNN with the best value; empty if none has one, or DNNs are judged by several metrics.
        best: its best value.
    """

    label: str
    directory: str
    state: str
    num_done: int
    num_pruned: int
    num_stopped: int
    num_failed: int
    num_dnns: int
    num_slots: int
    starts: int
    duration_s: float
    slot_hours: float
    best_dnn: str = ""
    best: float | None = None

    @property
    def counts(self) -> str:
        """How many DNNs are done, and how many were pruned, stopped or failed."""
        early = early_text(self.num_pruned, self.num_stopped)
        failed = f", {self.num_failed} failed" if self.num_failed else ""
        return f"{self.num_done} of {self.num_dnns} done{early}{failed}"


@dataclass(frozen=True, slots=True)
class DnnInRun:
    """One DNN in one run.

    Attributes:
        run: label of the run.
        metric: the metric by which the DNN is compared.
        more_is_better: whether a larger value is better.
        best, best_epoch: its best value, and the first epoch (from 1) with it; None if it is not known.
        last: its value after the last epoch.
        last_metrics: all metrics after the last epoch.
        is_best: whether no run has a better value for a DNN of this name, and another one has a worse one.
        slot_hours: see `RunSummary`.
        curve: all epochs.
    """

    dnn: str
    run: str
    state: str
    epochs: int
    metric: str
    more_is_better: bool
    best: float | None
    best_epoch: int | None
    last: float | None
    last_metrics: Mapping[str, float | None]
    wall_time_s: float
    slot_hours: float
    is_best: bool = False
    curve: tuple[EpochPoint, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigDifference:
    """A key in which the runs differ, with its text by label of the run; empty: the run lacks the key."""

    key: str
    value_by_run: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs side by side, in the order in which they were given; DNNs of the same name are neighbours."""

    runs: tuple[RunSummary, ...]
    dnns: tuple[DnnInRun, ...]
    settings: tuple[ConfigDifference, ...]
    problems: tuple[str, ...] = ()

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics by which DNNs are compared."""
        return tuple(dict.fromkeys(each.metric for each in self.dnns))


def render_comparison(comparison: Comparison) -> str:
    """The runs, their DNNs, and the settings in which the runs differ."""
    blocks = [_runs(comparison), _dnns(comparison), _settings(comparison)]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _runs(comparison: Comparison) -> list[str]:
    best = f"best {comparison.metrics[0]}" if len(comparison.metrics) == 1 else "best"
    headers = ["run", "state", "DNNs", best, "by", "slots", "starts", "time", "slot-hours"]
    rows = []
    for run in comparison.runs:
        cells = [run.label, run.state, run.counts, number_text(run.best), run.best_dnn or "-"]
        cells += [str(run.num_slots), str(run.starts), duration_text(run.duration_s), f"{run.slot_hours:.3f}"]
        rows.append(cells)
    return format_table(headers, rows, right={3, 5, 6, 7, 8})


def _dnns(comparison: Comparison) -> list[str]:
    if not comparison.dnns:
        return []
    one_metric = len(comparison.metrics) == 1
    best = f"best {comparison.metrics[0]}" if one_metric else "best"
    headers = ["DNN", "run", "state", "epochs", best, "in epoch", "last", "time", "slot-hours"]
    if not one_metric:
        headers.insert(4, "metric")
    rows = []
    for each in comparison.dnns:
        value = number_text(each.best) + ("*" if each.is_best else " ")
        epoch = "-" if each.best_epoch is None else str(each.best_epoch)
        cells = [each.dnn, each.run, each.state, str(each.epochs), value, epoch, number_text(each.last)]
        cells += [duration_text(each.wall_time_s), f"{each.slot_hours:.3f}"]
        if not one_metric:
            cells.insert(4, each.metric)
        rows.append(cells)
    right = {column for column in range(3, len(headers)) if headers[column] != "metric"}
    lines = format_table(headers, rows, right=right)
    for run in comparison.runs:
        of_run = {each.dnn: each.best for each in comparison.dnns if each.run == run.label}
        folds = fold_sentences(of_run, headers[4] if one_metric else "best value")
        lines += ["", *(f"{run.label}: {sentence}" for sentence in folds)] if folds else []
    if any(each.is_best for each in comparison.dnns):
        lines += ["", "* the best of the runs that have this DNN"]
    return lines


def _settings(comparison: Comparison) -> list[str]:
    if len(comparison.runs) < 2:
        return []
    if not comparison.settings:
        return ["no setting differs"] if not comparison.problems else []
    labels = [run.label for run in comparison.runs]
    rows = [
        [each.key, *(each.value_by_run.get(label, "") or "-" for label in labels)]
        for each in comparison.settings
    ]
    title = f"{count_text(len(rows), 'setting')} that differ{'s' if len(rows) == 1 else ''}"
    return format_table([title, *labels], rows)
