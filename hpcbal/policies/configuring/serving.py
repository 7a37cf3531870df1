"""Share the parameter blocks out to the servers: how much each may hold at most, and who is filled first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hpcbal.policies.configuring.kinds import FloatArray, IntArray, Kinds

_WHOLE = 1e-9
_MOST_LEVELS = 1024
"""Levels that are tried one by one; from more of them, that many are taken, at equal ratios."""


@dataclass(frozen=True, slots=True, eq=False)
class Serving:
    """Parameter blocks by kind of server, and what they make transfers take.

    Attributes:
        total: blocks of all servers of each kind together; spread evenly within a kind.
        slowest_s: seconds per byte of a turn at the slowest server: max_j(f_j * serve_s_j).
        link_s: seconds per byte of a turn over the links of a worker of each kind: sum_j(f_j / b_ij).
    """

    total: IntArray
    slowest_s: float
    link_s: FloatArray


def sharings(kinds: Kinds, servers: IntArray, num_blocks: int) -> Iterator[Serving]:
    """All ways to share the blocks out that can be best for some workers, from the least `slowest_s` upwards.

    Workers want two things of the servers: a low max_j(f_j * serve_s_j), and few bytes over slow links. If
    the first is capped at a level u, server j holds at most floor(u / serve_s_j) blocks. Under these caps the
    second is least for *every* worker at once if the servers with the fastest links are filled first, because
    1 / b_ij never increases with b_j. So a single number, u, describes all sharings worth trying. It is one
    of the times x * serve_s_j of whole blocks. The sequence ends when more would not help: all blocks are on
    the fastest links.

    Args:
        servers: servers of each kind.
        num_blocks: parameter blocks of the model.

    Yields: sharings; none if memory cannot hold the blocks.
    """
    used = servers > 0
    if int((servers * kinds.most_parameters).sum()) < num_blocks:
        return
    order = np.argsort(kinds.link_s, kind="stable")
    fastest = _fill(servers * kinds.most_parameters, order, num_blocks)
    last: IntArray | None = None
    top = float((-(-fastest // np.maximum(servers, 1)) * kinds.serve_s).max())
    for caps in _caps(kinds, servers, num_blocks, top):
        total = _fill(servers * caps, order, num_blocks)
        if last is not None and bool((total == last).all()):
            if bool((total == fastest).all()):
                return
            continue
        last = total
        largest = -(-total // np.maximum(servers, 1))
        share = total / num_blocks
        link_s = np.maximum(kinds.link_s[:, None], kinds.link_s[None, :]) @ share
        yield Serving(total, float((largest * kinds.serve_s)[used].max()) / num_blocks, link_s)


def least_slowest(kinds: Kinds, servers: IntArray, num_blocks: int) -> FloatArray:
    """A lower bound of `slowest_s` for many cases at once, tight to 1e-9.

    Args:
        servers: servers of each kind, shape (..., num_kinds).

    Returns: shape (...,); infinite where memory cannot hold the blocks.
    """
    low = np.zeros(servers.shape[:-1])
    high = np.full(servers.shape[:-1], float(kinds.serve_s.max()) * num_blocks)
    fits = (servers * kinds.most_parameters).sum(axis=-1) >= num_blocks
    for _ in range(40):
        middle = (low + high) / 2
        caps = np.minimum(np.floor(middle[..., None] / kinds.serve_s + _WHOLE), kinds.most_parameters)
        enough = (servers * caps).sum(axis=-1) >= num_blocks
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(fits, low / num_blocks, np.inf)


def _caps(kinds: Kinds, servers: IntArray, num_blocks: int, top: float) -> Iterator[IntArray]:
    """Most blocks of a server of each kind, at each level from the least with enough room up to `top`."""
    used = servers > 0
    low, high = 0.0, float(kinds.serve_s[used].max()) * num_blocks

    def at(level: float) -> IntArray:
        caps = np.floor(np.minimum(level / kinds.serve_s + _WHOLE, kinds.most_parameters)).astype(np.int64)
        return np.where(used, np.minimum(caps, num_blocks), 0)

    def has_room(caps: IntArray) -> bool:
        return int((servers * caps).sum()) >= num_blocks

    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if has_room(at(middle)):
            high = middle
        else:
            low = middle
    caps = at(high)
    yield caps
    full = np.maximum(at(top), caps)
    if int((full - caps).sum()) > _MOST_LEVELS:
        for level in np.geomspace(high, top, _MOST_LEVELS)[1:]:
            yield np.maximum(caps, at(float(level)))
        return
    while bool((caps < full).any()):
        caps = np.maximum(caps, at(float(((caps + 1) * kinds.serve_s)[caps < full].min())))
        yield caps


def _fill(room: IntArray, order: IntArray, num_blocks: int) -> IntArray:
    """Blocks of each kind: the kinds in `order` are filled up to their room."""
    total = np.zeros_like(room)
    left = num_blocks
    for kind in order:
        total[kind] = min(left, int(room[kind]))
        left -= int(total[kind])
    return total
