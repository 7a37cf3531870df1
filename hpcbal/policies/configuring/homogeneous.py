"""Choose the numbers of workers and servers among equal machines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcbal.errors import PolicyError
from hpcbal.policies.batching import split_evenly
from hpcbal.policies.configuring.cost_model import (
    Configuration,
    Machine,
    Problem,
    on_shared_links,
    served_bytes,
)

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Kinds:
    """Machines in groups of equals; arrays have one entry per kind.

    Attributes:
        members: machines of each kind, ascending.
        size: number of members.
        block_s: compute time of a data block.
        link_s: seconds per byte of the link.
        serve_s: seconds per byte as a server.
        most_data, most_parameters: most blocks that memory allows.
        most_workers: how many members have room for a data block.
    """

    members: tuple[tuple[int, ...], ...]
    size: IntArray
    block_s: FloatArray
    link_s: FloatArray
    serve_s: FloatArray
    most_data: IntArray
    most_parameters: IntArray
    most_workers: IntArray


def group(problem: Problem) -> Kinds:
    """Group the machines of a problem; kinds are in the order of their first members."""
    members: dict[Machine, list[int]] = {}
    for i, machine in enumerate(problem.machines):
        members.setdefault(machine, []).append(i)
    size = np.array([len(group) for group in members.values()], np.int64)
    most_data = np.array([problem.most_data_blocks(machine) for machine in members], np.int64)
    return Kinds(
        tuple(tuple(group) for group in members.values()),
        size,
        np.array([machine.seconds_per_sample for machine in members]) * problem.samples_per_block,
        1.0 / np.array([machine.bandwidth for machine in members]),
        np.array([problem.serve_s_per_byte(machine) for machine in members]),
        most_data,
        np.array([problem.most_parameter_blocks(machine) for machine in members], np.int64),
        np.where(most_data == 0, 0, size),
    )


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


def best_homogeneous(problem: Problem) -> Configuration:
    """The numbers of workers and servers with the shortest epoch, in O(N) for N machines.

    Blocks are whole, so shares differ by at most one block, and the largest share counts: for w workers that
    is ceil(data blocks / w), and likewise for servers. Rounding can favour another w than real numbers do: 9
    servers hold 16 blocks no faster than 8. Ties go to fewer workers. The first machines are workers, the
    next ones servers; machines without a block stand by.

    Raises: PolicyError: machines differ, there are fewer than 2, or the blocks do not fit into memory.
    Source: [PS] Eq. 3.5. The paper does not say how it rounds.
    """
    machine = problem.machines[0]
    num_machines = len(problem.machines)
    if any(other != machine for other in problem.machines):
        raise PolicyError("machines: got unlike ones, allowed: equal machines; use best_heterogeneous")
    if num_machines < 2:
        raise PolicyError("machines: got 1, allowed: at least 2, a worker and a server")
    most_data = problem.most_data_blocks(machine)
    most_parameters = problem.most_parameter_blocks(machine)
    best: tuple[float, int] | None = None
    for num_workers in range(1, min(num_machines - 1, problem.num_data_blocks) + 1):
        num_servers = num_machines - num_workers
        data = -(-problem.num_data_blocks // num_workers)
        parameters = -(-problem.num_parameter_blocks // num_servers)
        if data > most_data or parameters > most_parameters:
            continue
        epoch_s = _epoch_s(problem, num_workers, data, parameters)
        if best is None or epoch_s < best[0]:
            best = epoch_s, num_workers
    if best is None:
        raise PolicyError(
            f"memory: {num_machines} machines of {machine.memory_bytes:.4g} bytes cannot hold the data and "
            "the model in any split; add executors, raise memory_per_rank, or use more blocks"
        )
    num_workers = best[1]
    num_servers = min(num_machines - num_workers, problem.num_parameter_blocks)
    idle = [0] * (num_machines - num_workers - num_servers)
    data_blocks = split_evenly(problem.num_data_blocks, num_workers)
    parameter_blocks = split_evenly(problem.num_parameter_blocks, num_servers)
    return Configuration.of_blocks(
        [*data_blocks, *[0] * num_servers, *idle], [*[0] * num_workers, *parameter_blocks, *idle]
    )


def _epoch_s(problem: Problem, num_workers: int, data: int, parameters: int) -> float:
    """Epoch time of the worker with the most data blocks, in O(1)."""
    share = parameters / problem.num_parameter_blocks
    samples = data * problem.samples_per_block
    turns = problem.num_turns(samples)
    return _longer_s(problem, num_workers, samples, share, float(turns))


def _longer_s(problem: Problem, num_workers: int, samples: float, share: float, turns: float) -> float:
    """Epoch time of a worker with so many samples and turns; see `epoch_cost`.

    Args:
        share: of the model on the fullest server.
    """
    machine = problem.machines[0]
    served_s = share * problem.serve_s_per_byte(machine) * served_bytes(problem, num_workers)
    if problem.turns == "per_worker":
        moved, served_s = turns * problem.full_turn_bytes, turns * served_s
    else:
        moved = turns * problem.turn_bytes + samples * problem.bytes_per_sample
    link_s = moved / machine.bandwidth
    own_s = samples * machine.seconds_per_sample + link_s + turns * problem.turn_overhead_s
    if problem.links == "shared":
        shared_s = on_shared_links(problem, num_workers, own_s, link_s, share * link_s)
        processed_s = share * machine.service_s_per_byte * served_bytes(problem, num_workers)
        return max(shared_s, own_s + processed_s) if problem.has_barrier else max(shared_s, served_s)
    return own_s + served_s if problem.has_barrier else max(own_s, served_s)
