"""Choose which training rates to measure next, and pack the measurements onto the GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcbal.cluster.layout import Cluster
from hpcbal.control.messages import GroupPlan
from hpcbal.control.progress import ScheduleSettings
from hpcbal.policies import Flotilla, RateTable, assign_gpus, profiling_counts


@dataclass(frozen=True, slots=True)
class ProfileJob:
    """One measurement: the rate of `dnn_id` on `num_gpus` GPUs."""

    dnn_id: str
    num_gpus: int


def missing_jobs(
    live: Sequence[str],
    all_ids: Sequence[str],
    rates: RateTable,
    cluster: Cluster,
    settings: ScheduleSettings,
    batch_sizes: Mapping[str, int] | None = None,
) -> tuple[ProfileJob, ...]:
    """Find the measurements that are missing and can be made now.

    While a live DNN lacks its rate on one GPU, only these single-GPU runs are returned, because M_t depends
    on them. Then the runs on 2..M_t GPUs follow.

    Args:
        live: DNNs that will be trained.
        all_ids: every DNN, including those done and failed: M_t is computed from all known rates, so that it
            does not change when a DNN drops out or the run is resumed.
        rates: the rates measured so far.
        cluster: the allocation.
        settings: `max_profile_gpus` and `max_gpus_per_dnn` limit the number of GPUs.
        batch_sizes: samples per step of each DNN, >= 1; it is measured on no more GPUs than that.

    Returns: jobs in the order of `live`, smaller counts first; empty when nothing is missing.
    Source: [FLEET] App. B.3, steps 1 to 3. Deviation: counts that `max_gpus_per_dnn` or the batch size
        forbid in training are not measured.
    """
    single = tuple(ProfileJob(dnn_id, 1) for dnn_id in live if not rates.is_measured(dnn_id, 1))
    if single or not live:
        return single
    bounds = [n for n in (settings.max_profile_gpus, settings.max_gpus_per_dnn) if n is not None]
    counts = profiling_counts(
        [rates.measured[dnn_id][1] for dnn_id in all_ids if rates.is_measured(dnn_id, 1)],
        cluster.max_gpus_per_node,
        cluster.num_gpus,
        min(bounds, default=None),
    )
    most = batch_sizes or {}
    return tuple(
        ProfileJob(d, m) for d in live for m in counts if m <= most.get(d, m) and not rates.is_measured(d, m)
    )


def next_wave(jobs: Sequence[ProfileJob], num_gpus: int) -> tuple[ProfileJob, ...]:
    """The first bin of first-fit-decreasing: the largest jobs first, then every job that still fits.

    A DNN is in a wave at most once, because events identify a group by its DNN. Among equal jobs, the earlier
    one in `jobs` goes first.

    Args:
        jobs: measurements on at most `num_gpus` GPUs each.
        num_gpus: M, >= 1.

    Returns: at least one job if there are any; together they use at most `num_gpus` GPUs.
    """
    wave: list[ProfileJob] = []
    used: set[str] = set()
    free = num_gpus
    for job in sorted(jobs, key=lambda job: -job.num_gpus):  # sorted() keeps the order of equal jobs
        if job.num_gpus <= free and job.dnn_id not in used:
            wave.append(job)
            used.add(job.dnn_id)
            free -= job.num_gpus
    return tuple(wave)


def place_wave(wave: Sequence[ProfileJob], cluster: Cluster) -> tuple[GroupPlan, ...]:
    """Place the jobs of a wave on GPUs as a flotilla would be placed, so that the times are realistic."""
    nothing = (0.0,) * len(wave)
    flotilla = Flotilla(
        dnn_ids=tuple(job.dnn_id for job in wave),
        num_gpus=tuple(job.num_gpus for job in wave),
        rates_before=nothing,
        rates=nothing,
        reference_rate=0.0,
    )
    gpus = assign_gpus(flotilla, cluster).gpus
    return tuple(GroupPlan(job.dnn_id, tuple(gpus[job.dnn_id])) for job in wave)
