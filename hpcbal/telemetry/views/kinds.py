"""How each kind of run is shown to users (docs/adr/0010)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from hpcbal.telemetry.views import ensemble_table
from hpcbal.telemetry.views.ensemble_status import EnsembleStatus
from hpcbal.telemetry.views.summary import NUMBERS, SAVED

AnyStatus: TypeAlias = EnsembleStatus
"""The content of a status.json; will be a union once there is a second kind."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A number by which jobs are compared.

    Attributes:
        best_key: its best value over all epochs in files.
        final_key: its value after the last epoch in files; empty if there is none.
        title: its best value in the head of a column.
        words: its best value in a sentence.
    """

    best_key: str
    final_key: str
    title: str
    words: str


@dataclass(frozen=True, slots=True)
class KindView:
    """How runs of one kind are shown.

    Attributes:
        job: what users call a job, singular.
        measures: the measures that a run may have, in order of preference; the first is the main one.
        numbers: further columns of results.csv that hold numbers.
        more_is_better: whether a larger best value is better.
        report_names: names in `report --json` of fields that have neutral names in the report.
        status_type: the TypedDict of a status.json of this kind.
        place_of: returns the parts of the headline that show how far the run is.
        body_of: returns the lines below the headline.
    """

    job: str
    measures: tuple[Measure, ...]
    numbers: tuple[str, ...]
    more_is_better: bool
    report_names: Mapping[str, str]
    status_type: type[EnsembleStatus]
    place_of: Callable[[EnsembleStatus], list[str]]
    body_of: Callable[[EnsembleStatus], list[str]]

    @property
    def best_key(self) -> str:
        """The name of the main measure in files."""
        return self.measures[0].best_key

    def measure(self, best_key: str) -> Measure:
        """The measure of that key; the main one if the key is empty."""
        return next((each for each in self.measures if each.best_key == best_key), self.measures[0])

    def measure_of(self, numbers_by_job: Iterable[Mapping[str, float | None]]) -> Measure:
        """The first measure for which a job has a value; the main one if there is none."""
        keys = {key for numbers in numbers_by_job for key, value in numbers.items() if value is not None}
        return next((each for each in self.measures if each.best_key in keys), self.measures[0])

    def best(self, values: Iterable[float]) -> float:
        """The best of at least one value."""
        return max(values) if self.more_is_better else min(values)


ENSEMBLE = KindView(
    job="DNN",
    measures=(
        Measure("best_val_accuracy", "final_val_accuracy", "best val accuracy", "best validation accuracy"),
        Measure("best_accuracy", "final_accuracy", "best train accuracy", "best training accuracy"),
    ),
    numbers=(*(number for number in NUMBERS if number != "best_val_accuracy"), "bad_samples", *SAVED),
    more_is_better=True,
    report_names={"jobs": "dnns", "job": "dnn", "num_jobs": "num_dnns"},
    status_type=EnsembleStatus,
    place_of=ensemble_table.place_of,
    body_of=ensemble_table.body_of,
)
VIEWS: Mapping[str, KindView] = {"ensemble": ENSEMBLE}
DEFAULT_KIND = "ensemble"
"""The kind of a file that does not name one."""


def view_of(kind: str | None) -> KindView:
    """The view of a kind; None, from a file that names no kind, means an ensemble."""
    return VIEWS[DEFAULT_KIND if kind is None else kind]
