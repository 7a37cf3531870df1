"""Keep a DNN off GPUs without which it was faster."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

Gpus = tuple[int, ...]


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
