"""The measures of each kind of run, and its statuses (docs/adr/0010)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from hpcbal.events.history import shows_more_better
from hpcbal.kinds import KINDS, Kind
from hpcbal.telemetry.views.ensemble_table import EnsembleStatus
from hpcbal.telemetry.views.paramserver_status import JobsStatus, ParamServerStatus
from hpcbal.telemetry.views.status import JobStatus
from hpcbal.telemetry.views.summary import BEST, FINAL, metric_title, metric_words

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


def measure_in(kind: Kind, best_key: str = "") -> Measure:
    """Return the measure whose best values stand in files under that key; that of the kind if it is empty."""
    return Measure.of_metric(best_key.removeprefix(BEST) or kind.metric)


def is_number(column: str, kind: Kind) -> bool:
    """Return whether a column of results.csv holds numbers of jobs, rather than one of their settings."""
    return column in kind.numbers or column.startswith((BEST, FINAL))


def jobs_of(status: AnyStatus) -> Sequence[JobStatus]:
    """Return the jobs of a run of any kind."""
    values = cast(Mapping[str, Any], status)
    return cast(Sequence[JobStatus], values[kind_of(status).jobs])


def kind_of(status: AnyStatus) -> Kind:
    """Return the kind of a run by its status."""
    return KINDS[status["kind"]]
