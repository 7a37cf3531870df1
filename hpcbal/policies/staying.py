"""Leave DNNs on their slots where that costs nothing, and off slots without which they were faster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from hpcbal.cluster.layout import Cluster, num_nodes_used
from hpcbal.policies.flotilla import Flotilla
from hpcbal.policies.placement import SCORE_DIGITS, Placement, assign_slots, least_score, nodes_over_slots

LEAST_TRIES = 4
MOST_SLOTS_PLACED = 8192
"""A call tries as many placements as would place this many slots, at least `LEAST_TRIES`. A placement takes
longer with more slots, and the first tries gain the most."""

Slots = tuple[int, ...]


def assign_slots_staying(flotilla: Flotilla, cluster: Cluster, had: Mapping[str, Sequence[int]]) -> Placement:
    """Place a flotilla as `assign_slots` does, but do not move a DNN that can stay at no cost.

    A DNN that stays has its network and weights in memory; one that moves is built and loaded again. A DNN
    that needs no more slots than it had may stay on them, or on those of its fewest nodes if it needs fewer.
    First all DNNs that may stay are tried together. If the others cannot be placed around them with a score
    as good as that of a free placement, halves of them are tried, then quarters, and so on.

    Args:
        flotilla: DNNs and their numbers of slots.
        cluster: cluster with at least as many slots.
        had: slots of DNNs when they were last trained; DNNs that are not in the flotilla are ignored.

    Returns: a placement with the score of `assign_slots`, or a better one.
    Raises: PolicyError: as for `assign_slots`.
    """
    free = assign_slots(flotilla, cluster)
    node_of_slot = cluster.node_of_slots()
    needs = dict(zip(flotilla.dnn_ids, flotilla.num_slots, strict=True))
    own = {
        dnn_id: _on_fewest_nodes(had[dnn_id], need, node_of_slot)
        for dnn_id, need in needs.items()
        if need <= len(had.get(dnn_id, ()))
    }

    def added_nodes(dnn_id: str) -> int:
        """Nodes that staying uses beyond those of the free placement; above 0, staying may have a cost."""
        return num_nodes_used(own[dnn_id], node_of_slot) - num_nodes_used(free.slots[dnn_id], node_of_slot)

    best, staying = free, dict[str, Slots]()
    blocks = [sorted(own, key=added_nodes)]  # sorted() keeps the flotilla's order among equals
    for _ in range(max(LEAST_TRIES, MOST_SLOTS_PLACED // max(1, cluster.num_slots))):
        if not blocks:
            break
        block = blocks.pop()
        if not block:
            continue
        tried = staying | {dnn_id: own[dnn_id] for dnn_id in block}
        placement = _around(tried, flotilla, cluster, node_of_slot, free.score)
        if placement is not None:
            best, staying = placement, tried
        elif len(block) > 1:
            half = len(block) // 2
            blocks += [block[half:], block[:half]]
    return best


def free_where_built(
    needs: Mapping[str, int], built: Mapping[str, Sequence[int]], taken: Collection[int]
) -> dict[str, Slots]:
    """Slots where networks are built already, for as many DNNs as possible, no slot for two of them.

    Args:
        needs: number of slots of each DNN.
        built: slots whose ranks hold the network of a DNN, by DNN.
        taken: slots that are not free.

    Returns: slots by DNN, ascending; DNNs whose network is built on too few free slots are left out.
    """
    found: dict[str, Slots] = {}
    gone = set(taken)
    for dnn_id in sorted(needs, key=lambda dnn_id: len(built.get(dnn_id, ()))):  # few choices first
        own = [slot for slot in built.get(dnn_id, ()) if slot not in gone]
        if len(own) >= needs[dnn_id]:
            found[dnn_id] = tuple(own[: needs[dnn_id]])
            gone.update(found[dnn_id])
    return found


def _around(
    staying: Mapping[str, Slots],
    flotilla: Flotilla,
    cluster: Cluster,
    node_of_slot: Sequence[int],
    most: float,
) -> Placement | None:
    """The flotilla with some of its DNNs on given slots; None if that scores more than `most`."""
    others = [i for i, dnn_id in enumerate(flotilla.dnn_ids) if dnn_id not in staying]
    taken = {slot for slots in staying.values() for slot in slots}
    left = [slot for slot in range(cluster.num_slots) if slot not in taken]
    rest = replace(
        flotilla,
        dnn_ids=tuple(flotilla.dnn_ids[i] for i in others),
        num_slots=tuple(flotilla.num_slots[i] for i in others),
        rates_before=tuple(flotilla.rates_before[i] for i in others),
        rates=tuple(flotilla.rates[i] for i in others),
    )
    part = cluster.part(left)
    score = nodes_over_slots(staying.values(), node_of_slot)
    if round(score + least_score(rest.num_slots, part), SCORE_DIGITS) > round(most, SCORE_DIGITS):
        return None
    placed = assign_slots(rest, part)
    if round(score + placed.score, SCORE_DIGITS) > round(most, SCORE_DIGITS):
        return None
    slots = {
        dnn_id: staying[dnn_id] if dnn_id in staying else tuple(left[j] for j in placed.slots[dnn_id])
        for dnn_id in flotilla.dnn_ids
    }
    return Placement(slots, nodes_over_slots(slots.values(), node_of_slot))


def _on_fewest_nodes(slots: Sequence[int], number: int, node_of_slot: Sequence[int]) -> Slots:
    """`number` of the slots, from the nodes that hold most of them."""
    held = Counter(node_of_slot[slot] for slot in slots)
    by_node = sorted(slots, key=lambda slot: (-held[node_of_slot[slot]], node_of_slot[slot], slot))
    return tuple(sorted(by_node[:number]))


def without_left_out(slots: Sequence[int], left_out: Collection[int]) -> Slots:
    """The slots of a group that stay, in their order; the first slot if none would be left."""
    return tuple(slot for slot in slots if slot not in left_out) or tuple(slots[:1])


def avoid_left_out(
    slots: Mapping[str, Slots],
    left_out: Mapping[str, Collection[int]],
    free: Iterable[int],
    node_of_slot: Sequence[int],
) -> dict[str, Slots]:
    """Return the slots that DNNs are better off without.

    1. Each such slot is exchanged for a free one, or for a slot of another DNN that can use it: slots on the
       same node first, because that does not change the placement's score, then free slots, then by number.
    2. A slot that cannot be exchanged stays idle, and its DNN has one slot fewer.
    3. A DNN keeps such a slot only if it has no other, and no exchange is possible even after all other DNNs
       have returned theirs.

    Args:
        slots: slots of each DNN, at least one, none twice.
        left_out: by DNN, slots that it is better off without.
        free: slots that no DNN has, and that may be used.
        node_of_slot: node index of each slot.

    Returns: slots of each DNN, ascending, at least one, at most as many as given.
    """
    if not any(slot in left_out.get(dnn_id, ()) for dnn_id, own in slots.items() for slot in own):
        return dict(slots)
    owner: dict[int, str | None] = dict.fromkeys(free)
    owner |= {slot: dnn_id for dnn_id, own in slots.items() for slot in own}
    _exchange(slots, owner, left_out, node_of_slot)
    for dnn_id in slots:
        own = _of(dnn_id, owner)
        stay = without_left_out(own, left_out.get(dnn_id, ()))
        owner |= dict.fromkeys(set(own) - set(stay))
    _exchange(slots, owner, left_out, node_of_slot)
    return {dnn_id: _of(dnn_id, owner) for dnn_id in slots}


def _of(dnn_id: str, owner: Mapping[int, str | None]) -> Slots:
    return tuple(sorted(slot for slot, holder in owner.items() if holder == dnn_id))


def _exchange(
    dnn_ids: Collection[str],
    owner: dict[int, str | None],
    left_out: Mapping[str, Collection[int]],
    node_of_slot: Sequence[int],
) -> None:
    """Apply rule 1 until it changes nothing: another DNN may be waiting for a slot that one DNN returns."""
    is_changed = True
    while is_changed:
        is_changed = False
        for dnn_id in dnn_ids:
            bad = left_out.get(dnn_id, ())
            for slot in (slot for slot in _of(dnn_id, owner) if slot in bad):
                able = [
                    (node_of_slot[other] != node_of_slot[slot], holder is not None, other)
                    for other, holder in owner.items()
                    if holder != dnn_id
                    and other not in bad
                    and (holder is None or slot not in left_out.get(holder, ()))
                ]
                if able:
                    other = min(able)[2]
                    owner[slot], owner[other], is_changed = owner[other], dnn_id, True
