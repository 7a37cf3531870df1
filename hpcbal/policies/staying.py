"""Leave DNNs on their GPUs where that costs nothing, and off GPUs without which they were faster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from hpcbal.cluster.layout import Cluster, num_nodes_used
from hpcbal.policies.flotilla import Flotilla
from hpcbal.policies.gpu_row import SCORE_DIGITS
from hpcbal.policies.placement import Placement, assign_gpus, least_score, nodes_over_gpus

LEAST_TRIES = 4
MOST_GPUS_PLACED = 8192
"""A call tries as many placements as would place this many GPUs, at least `LEAST_TRIES`. A placement takes
longer with more GPUs, and the first tries gain the most."""

Gpus = tuple[int, ...]


def assign_gpus_staying(flotilla: Flotilla, cluster: Cluster, had: Mapping[str, Sequence[int]]) -> Placement:
    """Place a flotilla as `assign_gpus` does, but do not move a DNN that can stay at no cost.

    A DNN that stays has its network and weights in memory; one that moves is built and loaded again. A DNN
    that needs no more GPUs than it had may stay on them, or on those of its fewest nodes if it needs fewer.
    First all DNNs that may stay are tried together. If the others cannot be placed around them with a score
    as good as that of a free placement, halves of them are tried, then quarters, and so on.

    Args:
        flotilla: DNNs and their numbers of GPUs.
        cluster: cluster with at least as many GPUs.
        had: GPUs of DNNs when they were last trained; DNNs that are not in the flotilla are ignored.

    Returns: a placement with the score of `assign_gpus`, or a better one.
    Raises: PolicyError: as for `assign_gpus`.
    """
    free = assign_gpus(flotilla, cluster)
    node_of_gpu = cluster.node_of_gpus()
    needs = dict(zip(flotilla.dnn_ids, flotilla.num_gpus, strict=True))
    own = {
        dnn_id: _on_fewest_nodes(had[dnn_id], need, node_of_gpu)
        for dnn_id, need in needs.items()
        if need <= len(had.get(dnn_id, ()))
    }

    def added_nodes(dnn_id: str) -> int:
        """Nodes that staying uses beyond those of the free placement; above 0, staying may have a cost."""
        return num_nodes_used(own[dnn_id], node_of_gpu) - num_nodes_used(free.gpus[dnn_id], node_of_gpu)

    best, staying = free, dict[str, Gpus]()
    blocks = [sorted(own, key=added_nodes)]  # sorted() keeps the flotilla's order among equals
    for _ in range(max(LEAST_TRIES, MOST_GPUS_PLACED // max(1, cluster.num_gpus))):
        if not blocks:
            break
        block = blocks.pop()
        if not block:
            continue
        tried = staying | {dnn_id: own[dnn_id] for dnn_id in block}
        placement = _around(tried, flotilla, cluster, node_of_gpu, free.score)
        if placement is not None:
            best, staying = placement, tried
        elif len(block) > 1:
            half = len(block) // 2
            blocks += [block[half:], block[:half]]
    return best


def free_where_built(
    needs: Mapping[str, int], built: Mapping[str, Sequence[int]], taken: Collection[int]
) -> dict[str, Gpus]:
    """GPUs where networks are built already, for as many DNNs as possible, no GPU for two of them.

    Args:
        needs: number of GPUs of each DNN.
        built: GPUs whose ranks hold the network of a DNN, by DNN.
        taken: GPUs that are not free.

    Returns: GPUs by DNN, ascending; DNNs whose network is built on too few free GPUs are left out.
    """
    found: dict[str, Gpus] = {}
    gone = set(taken)
    for dnn_id in sorted(needs, key=lambda dnn_id: len(built.get(dnn_id, ()))):  # few choices first
        own = [gpu for gpu in built.get(dnn_id, ()) if gpu not in gone]
        if len(own) >= needs[dnn_id]:
            found[dnn_id] = tuple(own[: needs[dnn_id]])
            gone.update(found[dnn_id])
    return found


def _around(
    staying: Mapping[str, Gpus],
    flotilla: Flotilla,
    cluster: Cluster,
    node_of_gpu: Sequence[int],
    most: float,
) -> Placement | None:
    """The flotilla with some of its DNNs on given GPUs; None if that scores more than `most`."""
    others = [i for i, dnn_id in enumerate(flotilla.dnn_ids) if dnn_id not in staying]
    taken = {gpu for gpus in staying.values() for gpu in gpus}
    left = [gpu for gpu in range(cluster.num_gpus) if gpu not in taken]
    rest = replace(
        flotilla,
        dnn_ids=tuple(flotilla.dnn_ids[i] for i in others),
        num_gpus=tuple(flotilla.num_gpus[i] for i in others),
        rates_before=tuple(flotilla.rates_before[i] for i in others),
        rates=tuple(flotilla.rates[i] for i in others),
    )
    part = cluster.part(left)
    score = nodes_over_gpus(staying.values(), node_of_gpu)
    if round(score + least_score(rest.num_gpus, part), SCORE_DIGITS) > round(most, SCORE_DIGITS):
        return None
    placed = assign_gpus(rest, part)
    if round(score + placed.score, SCORE_DIGITS) > round(most, SCORE_DIGITS):
        return None
    gpus = {
        dnn_id: staying[dnn_id] if dnn_id in staying else tuple(left[j] for j in placed.gpus[dnn_id])
        for dnn_id in flotilla.dnn_ids
    }
    return Placement(gpus, nodes_over_gpus(gpus.values(), node_of_gpu))


def _on_fewest_nodes(gpus: Sequence[int], number: int, node_of_gpu: Sequence[int]) -> Gpus:
    """`number` of the GPUs, from the nodes that hold most of them."""
    held = Counter(node_of_gpu[gpu] for gpu in gpus)
    by_node = sorted(gpus, key=lambda gpu: (-held[node_of_gpu[gpu]], node_of_gpu[gpu], gpu))
    return tuple(sorted(by_node[:number]))


def without_left_out(gpus: Sequence[int], left_out: Collection[int]) -> Gpus:
    """The GPUs of a group that stay, in their order; the first GPU if none would be left."""
    return tuple(gpu for gpu in gpus if gpu not in left_out) or tuple(gpus[:1])


def avoid_left_out(
    gpus: Mapping[str, Gpus],
    left_out: Mapping[str, Collection[int]],
    free: Iterable[int],
    node_of_gpu: Sequence[int],
) -> dict[str, Gpus]:
    """Return the GPUs that DNNs are better off without.

    1. Each such GPU is exchanged for a free one, or for a GPU of another DNN that can use it: GPUs on the
       same node first, because that does not change the placement's score, then free GPUs, then by number.
    2. A GPU that cannot be exchanged stays idle, and its DNN has one GPU fewer.
    3. A DNN keeps such a GPU only if it has no other, and no exchange is possible even after all other DNNs
       have returned theirs.

    Args:
        gpus: GPUs of each DNN, at least one, none twice.
        left_out: by DNN, GPUs that it is better off without.
        free: GPUs that no DNN has, and that may be used.
        node_of_gpu: node index of each GPU.

    Returns: GPUs of each DNN, ascending, at least one, at most as many as given.
    """
    if not any(gpu in left_out.get(dnn_id, ()) for dnn_id, own in gpus.items() for gpu in own):
        return dict(gpus)
    owner: dict[int, str | None] = dict.fromkeys(free)
    owner |= {gpu: dnn_id for dnn_id, own in gpus.items() for gpu in own}
    _exchange(gpus, owner, left_out, node_of_gpu)
    for dnn_id in gpus:
        own = _of(dnn_id, owner)
        stay = without_left_out(own, left_out.get(dnn_id, ()))
        owner |= dict.fromkeys(set(own) - set(stay))
    _exchange(gpus, owner, left_out, node_of_gpu)
    return {dnn_id: _of(dnn_id, owner) for dnn_id in gpus}


def _of(dnn_id: str, owner: Mapping[int, str | None]) -> Gpus:
    return tuple(sorted(gpu for gpu, holder in owner.items() if holder == dnn_id))


def _exchange(
    dnn_ids: Collection[str],
    owner: dict[int, str | None],
    left_out: Mapping[str, Collection[int]],
    node_of_gpu: Sequence[int],
) -> None:
    """Apply rule 1 until it changes nothing: another DNN may be waiting for a GPU that one DNN returns."""
    is_changed = True
    while is_changed:
        is_changed = False
        for dnn_id in dnn_ids:
            bad = left_out.get(dnn_id, ())
            for gpu in (gpu for gpu in _of(dnn_id, owner) if gpu in bad):
                able = [
                    (node_of_gpu[other] != node_of_gpu[gpu], holder is not None, other)
                    for other, holder in owner.items()
                    if holder != dnn_id
                    and other not in bad
                    and (holder is None or gpu not in left_out.get(holder, ()))
                ]
                if able:
                    other = min(able)[2]
                    owner[gpu], owner[other], is_changed = owner[other], dnn_id, True
