"""Place a flotilla in one sweep, for predictions in which only the number of a DNN's GPUs matters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcbal.cluster.layout import Cluster
from hpcbal.policies.flotilla import Flotilla
from hpcbal.policies.placement import Placement


def assign_gpus_roughly(flotilla: Flotilla, cluster: Cluster, had: Mapping[str, Sequence[int]]) -> Placement:
    """Place a flotilla without a search: DNNs stay where they can, the others take the free GPUs in order.

    Not for training: nodes are not considered, and the score is not computed (it is 0).

    Args:
        flotilla: DNNs and their numbers of GPUs.
        cluster: cluster with at least as many GPUs.
        had: GPUs of DNNs when they were last trained.
    """
    needs = dict(zip(flotilla.dnn_ids, flotilla.num_gpus, strict=True))
    gpus = {d: tuple(had[d][:need]) for d, need in needs.items() if need <= len(had.get(d, ()))}
    taken = {gpu for own in gpus.values() for gpu in own}
    free = iter([gpu for gpu in range(cluster.num_gpus) if gpu not in taken])
    for d, need in needs.items():
        if d not in gpus:
            gpus[d] = tuple(next(free) for _ in range(need))
    return Placement({d: gpus[d] for d in needs}, 0.0)
