"""Profiling: which rates to measure, in waves of groups or while rounds train.

Then the only question is which DNNs share a round. Nothing has to be known before the first one: a round of
one pass trains DNNs whose rates are not known, and its steps are timed. They train like all others, so no
step is done for the measurement alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcbal.cluster.layout import Cluster
from hpcbal.control.paradigms import Choice, View
from hpcbal.control.progress import ScheduleSettings
from hpcbal.events.ensemble import GroupPlan
from hpcbal.policies.flotilla import Flotilla
from hpcbal.policies.placement import assign_slots
from hpcbal.policies.rates import RateTable, profiling_counts


def measures_in_rounds(settings: ScheduleSettings, num_slots: int) -> bool:
    """Whether missing rates are measured in rounds, not in profiling waves.

    Args:
        num_slots: slots of the allocation.
    """
    most = num_slots if settings.max_slots_per_dnn is None else settings.max_slots_per_dnn
    return settings.profile and not settings.profile_only and most == 1


def choose_unmeasured(view: View, candidates: Sequence[str], built: Mapping[str, tuple[int, ...]]) -> Choice:
    """One slot for each DNN: those without a rate first, then the others, in the order of `candidates`.

    Args:
        candidates: DNNs that are not done.
        built: slots whose ranks hold the network of a DNN; it gets one of them if one is free.
    """
    order = sorted(candidates, key=lambda dnn_id: view.rates.is_measured(dnn_id, 1))  # stable
    chosen = order[: view.cluster.num_slots]
    free = list(range(view.cluster.num_slots))
    slot_of: dict[str, int] = {}
    for dnn_id in sorted(chosen, key=lambda dnn_id: dnn_id not in built):
        left_out, held = view.left_out.get(dnn_id, ()), built.get(dnn_id, ())
        slot_of[dnn_id] = min((slot in left_out, slot not in held, slot) for slot in free)[-1]
        free.remove(slot_of[dnn_id])
    rates = {d: view.rates.rate(d, 1) for d in chosen if view.rates.is_measured(d, 1)}
    return Choice(tuple(GroupPlan(d, (slot_of[d],)) for d in chosen), rates)


@dataclass(frozen=True, slots=True)
class ProfileJob:
    """One measurement: the rate of `dnn_id` on `num_slots` slots."""

    dnn_id: str
    num_slots: int


def missing_jobs(
    live: Sequence[str],
    all_ids: Sequence[str],
    rates: RateTable,
    cluster: Cluster,
    settings: ScheduleSettings,
    batch_sizes: Mapping[str, int] | None = None,
) -> tuple[ProfileJob, ...]:
    """Find the measurements that are missing and can be made now.

    While a live DNN lacks its rate on one slot, only these single-slot runs are returned, because M_t depends
    on them. Then the runs on 2..M_t slots follow.

    Args:
        live: DNNs that will be trained.
        all_ids: every DNN, including those done and failed: M_t is computed from all known rates, so that it
            does not change when a DNN drops out or the run is resumed.
        rates: the rates measured so far.
        cluster: the allocation.
        settings: `max_profile_slots` and `max_slots_per_dnn` limit the number of slots.
        batch_sizes: samples per step of each DNN, >= 1; it is measured on no more slots than that.

    Returns: jobs in the order of `live`, smaller counts first; empty when nothing is missing.
    Source: [FLEET] App. B.3, steps 1 to 3. Deviation: counts that `max_slots_per_dnn` or the batch size
        forbid in training are not measured.
    """
    single = tuple(ProfileJob(dnn_id, 1) for dnn_id in live if not rates.is_measured(dnn_id, 1))
    if single or not live:
        return single
    bounds = [n for n in (settings.max_profile_slots, settings.max_slots_per_dnn) if n is not None]
    counts = profiling_counts(
        [rates.measured[dnn_id][1] for dnn_id in all_ids if rates.is_measured(dnn_id, 1)],
        cluster.max_slots_per_node,
        cluster.num_slots,
        min(bounds, default=None),
    )
    most = batch_sizes or {}
    return tuple(
        ProfileJob(d, m) for d in live for m in counts if m <= most.get(d, m) and not rates.is_measured(d, m)
    )


def next_wave(jobs: Sequence[ProfileJob], num_slots: int) -> tuple[ProfileJob, ...]:
    """The first bin of first-fit-decreasing: the largest jobs first, then every job that still fits.

    A DNN is in a wave at most once, because events identify a group by its DNN. Among equal jobs, the earlier
    one in `jobs` goes first.

    Args:
        jobs: measurements on at most `num_slots` slots each.
        num_slots: M, >= 1.

    Returns: at least one job if there are any; together they use at most `num_slots` slots.
    """
    wave: list[ProfileJob] = []
    used: set[str] = set()
    free = num_slots
    for job in sorted(jobs, key=lambda job: -job.num_slots):  # sorted() keeps the order of equal jobs
        if job.num_slots <= free and job.dnn_id not in used:
            wave.append(job)
            used.add(job.dnn_id)
            free -= job.num_slots
    return tuple(wave)


def place_wave(wave: Sequence[ProfileJob], cluster: Cluster) -> tuple[GroupPlan, ...]:
    """Place the jobs of a wave on slots as a flotilla would be placed, so that the times are realistic."""
    nothing = (0.0,) * len(wave)
    flotilla = Flotilla(
        dnn_ids=tuple(job.dnn_id for job in wave),
        num_slots=tuple(job.num_slots for job in wave),
        rates_before=nothing,
        rates=nothing,
        reference_rate=0.0,
    )
    slots = assign_slots(flotilla, cluster).slots
    return tuple(GroupPlan(job.dnn_id, tuple(slots[job.dnn_id])) for job in wave)
