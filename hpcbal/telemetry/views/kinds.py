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
        best_key: the column of results.csv for the best value of a job.
        best_title: the same in a table.
        best_of: which of several best values is the best.
        status_keys: what a status.json of this kind always holds.
        place_of: parts of the headline that say where the run is.
        body_of: the lines below the headline.
    """

    job: str
    best_key: str
    best_title: str
    best_of: Callable[[Iterable[float]], float]
    status_keys: frozenset[str]
    place_of: Callable[[EnsembleStatus], list[str]]
    body_of: Callable[[EnsembleStatus], list[str]]


ENSEMBLE = KindView(
    job="DNN",
    best_key="best_val_accuracy",
    best_title="best val accuracy",
    best_of=max,
    status_keys=EnsembleStatus.__required_keys__,
    place_of=ensemble_table.place_of,
    body_of=ensemble_table.body_of,
)
VIEWS: Mapping[str, KindView] = {"ensemble": ENSEMBLE}


def view_of(kind: str | None) -> KindView:
    """The view of a kind; of an ensemble where a file does not name one."""
    return ENSEMBLE if kind is None else VIEWS[kind]
