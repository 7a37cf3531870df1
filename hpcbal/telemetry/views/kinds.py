"""The kinds of runs as people see them (docs/adr/0010)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from hpcbal.telemetry.views import ensemble_table
from hpcbal.telemetry.views.ensemble_status import EnsembleStatus

AnyStatus: TypeAlias = EnsembleStatus
"""What a status.json can hold: a union once there is a second kind."""


@dataclass(frozen=True, slots=True)
class KindView:
    """How runs of one kind are shown.

    Attributes:
        job: what people call a job, singular.
        best_key: the best value of a job in files.
        best_title: the same at the head of a column.
        best_words: the same in a sentence.
        more_is_better: of two best values, the larger one.
        report_names: how `report --json` names fields of the report that have neutral names.
        status_keys: what a status.json of this kind always holds.
        place_of: parts of the headline that say where the run is.
        body_of: the lines below the headline.
    """

    job: str
    best_key: str
    best_title: str
    best_words: str
    more_is_better: bool
    report_names: Mapping[str, str]
    status_keys: frozenset[str]
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
    status_keys=EnsembleStatus.__required_keys__,
    place_of=ensemble_table.place_of,
    body_of=ensemble_table.body_of,
)
VIEWS: Mapping[str, KindView] = {"ensemble": ENSEMBLE}
DEFAULT_KIND = "ensemble"
"""The kind of a file that does not name one."""


def view_of(kind: str | None) -> KindView:
    """The view of a kind; of an ensemble where a file does not name one."""
    return VIEWS[DEFAULT_KIND if kind is None else kind]
