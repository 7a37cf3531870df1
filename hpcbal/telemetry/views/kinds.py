"""How each kind of run is shown to users (docs/adr/0010)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from hpcbal.telemetry.views import ensemble_table
from hpcbal.telemetry.views.ensemble_status import EnsembleStatus

AnyStatus: TypeAlias = EnsembleStatus
"""The content of a status.json; will be a union once there is a second kind."""


@dataclass(frozen=True, slots=True)
class KindView:
    """How runs of one kind are shown.

    Attributes:
        job: what users call a job, singular.
        best_key: name of a job's best value in files.
        best_title: its name in the head of a column.
        best_words: its name in a sentence.
        more_is_better: whether a larger best value is better.
        report_names: names in `report --json` of fields that have neutral names in the report.
        status_type: the TypedDict of a status.json of this kind.
        place_of: returns the parts of the headline that show how far the run is.
        body_of: returns the lines below the headline.
    """

    job: str
    best_key: str
    best_title: str
    best_words: str
    more_is_better: bool
    report_names: Mapping[str, str]
    status_type: type[EnsembleStatus]
    place_of: Callable[[EnsembleStatus], list[str]]
    body_of: Callable[[EnsembleStatus], list[str]]

    def best(self, values: Iterable[float]) -> float:
        """The best of at least one value."""
        return max(values) if self.more_is_better else min(values)


ENSEMBLE = KindView(
    job="DNN",
    best_key="best_val_accuracy",
    best_title="best val accuracy",
    best_words="best validation accuracy",
    more_is_better=True,
    report_names={"jobs": "dnns", "job": "dnn", "num_jobs": "num_dnns", "best": "best_val_accuracy"},
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
