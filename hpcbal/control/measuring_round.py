"""Rounds that measure rates while they train, where no DNN may have more than one GPU.

Then the only question is which DNNs share a round. Nothing has to be known before the first one: a round of
one pass trains DNNs whose rates are not known, and its steps are timed. They train like all others, so no
step is done for the measurement alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcbal.control.messages import GroupPlan
from hpcbal.control.paradigms import Choice, View
from hpcbal.control.progress import ScheduleSettings


def measures_in_rounds(settings: ScheduleSettings, num_gpus: int) -> bool:
    """Whether missing rates are measured in rounds, not in profiling waves.

    Args:
        num_gpus: GPUs of the allocation.
    """
    most = num_gpus if settings.max_gpus_per_dnn is None else settings.max_gpus_per_dnn
    return settings.profile and not settings.profile_only and most == 1


def choose_unmeasured(view: View, candidates: Sequence[str], built: Mapping[str, tuple[int, ...]]) -> Choice:
    """One GPU for each DNN: those without a rate first, then the others, in the order of `candidates`.

    Args:
        candidates: DNNs that are not done.
        built: GPUs whose ranks hold the network of a DNN; it gets one of them if one is free.
    """
    order = sorted(candidates, key=lambda dnn_id: view.rates.is_measured(dnn_id, 1))  # stable
    chosen = order[: view.cluster.num_gpus]
    free = list(range(view.cluster.num_gpus))
    gpu_of: dict[str, int] = {}
    for dnn_id in sorted(chosen, key=lambda dnn_id: dnn_id not in built):
        left_out, held = view.left_out.get(dnn_id, ()), built.get(dnn_id, ())
        gpu_of[dnn_id] = min((gpu in left_out, gpu not in held, gpu) for gpu in free)[-1]
        free.remove(gpu_of[dnn_id])
    rates = {d: view.rates.rate(d, 1) for d in chosen if view.rates.is_measured(d, 1)}
    return Choice(tuple(GroupPlan(d, (gpu_of[d],)) for d in chosen), rates)
