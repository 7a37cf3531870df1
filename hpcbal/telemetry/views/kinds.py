"""How each kind of run is shown to users (docs/adr/0010)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from hpcbal.telemetry.views import ensemble_table, jobs_table, paramserver_table
from hpcbal.telemetry.views.ensemble_table import EnsembleStatus
from hpcbal.telemetry.views.jobs_status import JobsStatus
from hpcbal.telemetry.views.paramserver_status import ParamServerStatus
from hpcbal.telemetry.views.status import JobStatus
from hpcbal.telemetry.views.summary import BEST, BEST_EPOCH, FINAL, SAVED, metric_title, metric_words
from hpcbal.values.metric_names import shows_more_better

AnyStatus: TypeAlias = EnsembleStatus | ParamServerStatus | JobsStatus
"""The content of a status.json."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A number by which jobs are compared.

    Attributes:
        best_key: its best value over all epochs in files.
        final_key: its value after the last epoch in files; empty if there is none.
        title: its best value in the head of a column.
        words: its best value in a sentence.
        more_is_better: whether a larger best value is better.
    """

    best_key: str
    final_key: str
    title: str
    words: str
    more_is_better: bool = True

    @classmethod
    def of_metric(cls, metric: str) -> Measure:
        """The measure of a metric of epochs, such as `val_accuracy`."""
        more_is_better = shows_more_better(metric)
        superlative = "best" if more_is_better else "least"
        return cls(
            f"{BEST}{metric}",
            f"{FINAL}{metric}",
            f"best {metric_title(metric)}",
            f"{superlative} {metric_words(metric)}",
            more_is_better,
        )

    @property
    def metric(self) -> str:
        """The metric that it is the best value of."""
        return self.best_key.removeprefix(BEST)

    def best(self, values: Iterable[float]) -> float:
        """The best of at least one value."""
        return max(values) if self.more_is_better else min(values)


@dataclass(frozen=True, slots=True)
class KindView:
    """How runs of one kind are shown.

    Attributes:
        job: what users call a job, singular.
        main: the measure of a run that names no other.
        by_metrics: whether the metrics of epochs differ between runs, and each has a measure.
        numbers: columns of results.csv that hold numbers and are of no metric.
        report_names: names in `report --json` of fields that have neutral names in the report.
        status_type: the TypedDict of a status.json of this kind.
        place_of: returns the parts of the headline that show how far the run is.
        body_of: returns the lines below the headline.
        training: what a slot does that has a job.
        checkpoint: what holds the last epoch of a job.
    """

    job: str
    main: Measure
    by_metrics: bool
    numbers: tuple[str, ...]
    report_names: Mapping[str, str]
    status_type: type[EnsembleStatus] | type[ParamServerStatus] | type[JobsStatus]
    place_of: Callable[[Any], list[str]]
    body_of: Callable[[Any], list[str]]
    training: str = "in use"
    checkpoint: str = "the last checkpoint"

    def measure(self, best_key: str) -> Measure:
        """The measure of that key; the main one if the key is empty."""
        if self.by_metrics and best_key.startswith(BEST) and best_key != self.main.best_key:
            return Measure.of_metric(best_key.removeprefix(BEST))
        return self.main

    def is_number(self, column: str) -> bool:
        """Whether a column of results.csv holds numbers of jobs, rather than one of their settings."""
        return column in self.numbers or (self.by_metrics and column.startswith((BEST, FINAL)))


ENSEMBLE = KindView(
    job="DNN",
    main=Measure.of_metric("val_accuracy"),
    by_metrics=True,
    numbers=(BEST_EPOCH, "bad_samples", *SAVED),
    report_names={"jobs": "dnns", "job": "dnn", "num_jobs": "num_dnns"},
    status_type=EnsembleStatus,
    place_of=ensemble_table.place_of,
    body_of=ensemble_table.body_of,
    training="training",
    checkpoint="checkpoint.h5",
)
PARAMSERVER = KindView(
    job="job",
    main=Measure.of_metric("objective"),
    by_metrics=True,
    numbers=(BEST_EPOCH,),
    report_names={},
    status_type=ParamServerStatus,
    place_of=paramserver_table.place_of,
    body_of=paramserver_table.body_of,
)
JOBS = KindView(
    job="job",
    main=Measure.of_metric("objective"),
    by_metrics=True,
    numbers=(BEST_EPOCH,),
    report_names={},
    status_type=JobsStatus,
    place_of=jobs_table.place_of,
    body_of=jobs_table.body_of,
)
VIEWS: Mapping[str, KindView] = {"ensemble": ENSEMBLE, "paramserver": PARAMSERVER, "jobs": JOBS}
DEFAULT_KIND = "ensemble"
"""The kind of a file that does not name one."""


def jobs_of(status: AnyStatus) -> Sequence[JobStatus]:
    """The jobs of a run of any kind."""
    values = cast(Mapping[str, Any], status)
    return cast(Sequence[JobStatus], values["dnns" if "dnns" in values else "jobs"])


def view_of(kind: str | None) -> KindView:
    """The view of a kind; None, from a file that names no kind, means an ensemble."""
    return VIEWS[DEFAULT_KIND if kind is None else kind]
