"""The values of a comparison of runs; this module reads no files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpcbal.report.model import EpochPoint


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run as a whole.

    Attributes:
        label: short and unique in the comparison.
        directory: as it was given.
        state: as in the report: done, stopped, running, ...
        num_done, num_pruned, num_failed, num_dnns: DNNs.
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
        """How many DNNs are done, and how many were pruned or failed."""
        pruned = f", {self.num_pruned} pruned" if self.num_pruned else ""
        failed = f", {self.num_failed} failed" if self.num_failed else ""
        return f"{self.num_done} of {self.num_dnns} done{pruned}{failed}"


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
class Setting:
    """A key in which the runs differ, with its text by label of the run; empty: the run lacks the key."""

    key: str
    value_by_run: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs side by side, in the order in which they were given; DNNs of the same name are neighbours."""

    runs: tuple[RunSummary, ...]
    dnns: tuple[DnnInRun, ...]
    settings: tuple[Setting, ...]
    problems: tuple[str, ...] = ()

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics by which DNNs are compared."""
        return tuple(dict.fromkeys(each.metric for each in self.dnns))
