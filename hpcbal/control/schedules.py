"""The schedules that a run may choose from, and the choice among them by predicted makespans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256

from hpcbal.cluster.layout import Cluster
from hpcbal.control.paradigms import AUTO, PARADIGM_NAMES, PARADIGMS
from hpcbal.control.progress import ScheduleSettings
from hpcbal.events.ensemble import Delta, Schedule, ScheduleChosen, SchedulePrediction, cost_of
from hpcbal.events.members import DnnSpec

PAPER_DELTA = Delta(absolute=20.0)
PAPER_ALPHA = 0.8
"""[FLEET] Sec. 4.3.2 and 6.1."""

NO_DELTA = Delta(relative=1.0)
"""Admits every DNN: on one slot none is faster than the reference rate, and none has a rate of 0."""

DELTAS = (NO_DELTA, *(Delta(relative=share) for share in (0.6, 0.35, 0.2, 0.1)), PAPER_DELTA)
ALPHAS = (PAPER_ALPHA, 1.0, 0.5)


def candidates(settings: ScheduleSettings) -> tuple[Schedule, ...]:
    """The schedules that settings leave open, at least one; exactly one if nothing is to be chosen.

    What the settings give stays as given. What they leave open is tried: all paradigms, deltas from that of
    [FLEET] to none, and a few alphas. An alpha that is left open is that of [FLEET] if paradigm and delta are
    given, because there is nothing else to choose then. With a pruning rule only rounds are tried: without
    them, speed decides which DNN reaches a rung first, and a resumed run would prune others.
    """
    paradigms: Sequence[str] = (settings.paradigm,)
    if settings.paradigm == AUTO:
        paradigms = [n for n in PARADIGM_NAMES if n in PARADIGMS or settings.prune is None]
    deltas = DELTAS if settings.delta is None else (settings.delta,)
    is_open = settings.paradigm == AUTO or settings.delta is None
    alphas = (ALPHAS if is_open else (PAPER_ALPHA,)) if settings.alpha is None else (settings.alpha,)
    found: dict[Schedule, None] = {}
    for name in paradigms:
        paradigm = PARADIGMS.get(name)
        for delta in deltas if paradigm is not None and paradigm.needs_rates else (None,):
            for alpha in alphas if paradigm is not None and paradigm.has_alpha else (None,):
                found[Schedule(name, delta, alpha)] = None
    return tuple(found)


def basis_of(
    specs: Iterable[DnnSpec], schedules: Sequence[Schedule], max_slots_per_dnn: int | None, cluster: Cluster
) -> str:
    """Identify what a choice among `schedules` is made for, in 16 characters; see `ScheduleChosen`."""
    dnns = sorted((spec.dnn_id, spec.batch_size, spec.stop.max_epochs) for spec in specs)
    sizes = sorted(node.num_slots for node in cluster.nodes)
    facts = repr((dnns, tuple(schedules), max_slots_per_dnn, sizes))
    return sha256(facts.encode()).hexdigest()[:16]


def first_to_try(schedules: Sequence[Schedule], current: Schedule | None) -> tuple[Schedule, ...]:
    """The candidates that are replayed in any case: with one alpha, those of all paradigms and deltas.

    Args:
        schedules: all candidates.
        current: the schedule until now; it is tried whatever its alpha, and comes first.
    """
    alphas = [schedule.alpha for schedule in schedules if schedule.alpha is not None]
    usual = {None, *alphas[:1]}
    tried = [schedule for schedule in schedules if schedule.alpha in usual and schedule != current]
    before = [current] if current is not None and current in schedules else []
    return (*before, *sorted(tried, key=_effort))


def next_to_try(
    schedules: Sequence[Schedule], predictions: Mapping[Schedule, SchedulePrediction]
) -> tuple[Schedule, ...]:
    """The candidates that differ only in alpha from the best one that has an alpha.

    Args:
        schedules: all candidates.
        predictions: what `first_to_try` has led to.
    """
    best = min(
        (p for p in predictions.values() if p.schedule.alpha is not None and not p.is_cut),
        key=lambda p: p.remaining_s,
        default=None,
    )
    if best is None:
        return ()
    like = replace(best.schedule, alpha=None)
    return tuple(s for s in schedules if replace(s, alpha=None) == like and s not in predictions)


def _effort(schedule: Schedule) -> int:
    """Sorts schedules that are replayed in no time, and then the most promising ones, to the front."""
    if schedule.delta is None:
        return 0
    return 1 if schedule.delta == NO_DELTA else 2


LEAST_GAIN = 0.05
"""A choice is kept unless another schedule is predicted to take this share of the remaining time less."""


def choose(
    predictions: Sequence[SchedulePrediction],
    current: Schedule | None = None,
    preprocessing_samples_per_s: float | None = None,
    num_dnns: int | None = None,
    basis: str | None = None,
    hit_rate: float = 0.0,
) -> ScheduleChosen:
    """Choose the schedule with the shortest prediction.

    Ties go to fewer rounds, then to the first in order. The current schedule stays unless another one takes
    at least `LEAST_GAIN` less: predictions are not exact, and a change of schedule moves DNNs.

    Args:
        predictions: at least one, with different schedules; not all may be cut.
        current: the schedule until now; None: there is none. It has no effect if it is no candidate.
        preprocessing_samples_per_s, num_dnns, basis, hit_rate: see `ScheduleChosen`.
    """
    best = min(predictions, key=cost_of)  # cut ones come last
    kept = next((p for p in predictions if p.schedule == current and not p.is_cut), None)
    if kept is not None and best.remaining_s > (1.0 - LEAST_GAIN) * kept.remaining_s:
        best = kept
    return ScheduleChosen(
        best.schedule, tuple(predictions), current, preprocessing_samples_per_s, num_dnns, basis, hit_rate
    )
