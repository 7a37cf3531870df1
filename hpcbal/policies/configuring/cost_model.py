"""Predict the epoch time of a job on parameter servers, and what a change costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hpcbal.errors import PolicyError

Role = Literal["worker", "server", "standby"]
Turns = Literal["per_worker", "shared"]
Links = Literal["shared", "in_turn"]

ROLES: tuple[Role, ...] = ("worker", "server", "standby")
_WHOLE = 1e-9
"""Shares of a turn below this are rounding errors, not another turn."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The speed, bandwidth and memory of one executor.

    Attributes:
        seconds_per_sample: compute time of a sample, > 0.
        bandwidth: of its link, in bytes/s and in each direction, > 0 and finite.
        service_s_per_byte: time that its processor needs as a server to answer or apply one byte, >= 0.
        memory_bytes: memory for data and parameters, > 0.
    """

    seconds_per_sample: float
    bandwidth: float
    service_s_per_byte: float = 0.0
    memory_bytes: float = math.inf

    def __post_init__(self) -> None:
        _check("seconds_per_sample", self.seconds_per_sample, 0 < self.seconds_per_sample < math.inf, "> 0")
        _check("bandwidth", self.bandwidth, 0 < self.bandwidth < math.inf, "> 0 bytes/s and finite")
        _check("service_s_per_byte", self.service_s_per_byte, 0 <= self.service_s_per_byte < math.inf, ">= 0")
        _check("memory_bytes", self.memory_bytes, self.memory_bytes > 0, "> 0")


@dataclass(frozen=True, slots=True)
class Problem:
    """A job and the machines that it may use.

    Two rules count the turns (pull, compute, push) of an epoch. `per_worker`: a worker takes `mini_batch`
    samples in each of its turns, so it needs ceil(d_i / mini_batch) of them ([PS] Eq. 3.4; asynchronous
    training). `shared`: every worker takes part in all ceil(num_samples / mini_batch) steps, whatever its
    share of the data (synchronous and stale training, where `mini_batch` is the batch of all workers).

    Bytes of a turn are counted per worker and over all servers. With dense access they are the size of the
    model, each way. With sparse access they grow with the samples of the turn.

    Attributes:
        machines: machine i is executor i of the job, in any fixed order.
        num_samples: [PS] D, >= 1.
        num_data_blocks: blocks of samples, of nearly equal size, 1..num_samples.
        num_parameter_blocks: blocks of the model, of nearly equal size, >= 1.
        mini_batch: [PS] B, in samples, >= 1.
        turns: how turns are counted, see above.
        pull_bytes, push_bytes: bytes of a turn that do not depend on its samples, >= 0.
        pull_bytes_per_sample, push_bytes_per_sample: bytes of a turn for each of its samples, >= 0.
        has_barrier: whether a step starts only when all updates of the one before are applied (`sync`).
            False: servers are busy while workers compute (`stale`, `async`). Only with `shared` turns.
        turn_overhead_s: time of a turn that neither bytes nor samples explain (latency), >= 0.
        model_bytes: size of the model on the servers, [PS] M; only for memory limits, >= 0.
        sample_bytes: size of a sample and its state on a worker; only for memory limits, >= 0.
        links: whether a link carries one message after another, or all transfers share it.
    """

    machines: tuple[Machine, ...]
    num_samples: int
    num_data_blocks: int
    num_parameter_blocks: int
    mini_batch: int
    turns: Turns
    pull_bytes: float
    push_bytes: float
    pull_bytes_per_sample: float = 0.0
    push_bytes_per_sample: float = 0.0
    has_barrier: bool = False
    turn_overhead_s: float = 0.0
    model_bytes: float = 0.0
    sample_bytes: float = 0.0
    links: Links = "in_turn"

    def __post_init__(self) -> None:
        _check("machines", len(self.machines), len(self.machines) >= 1, "at least 1")
        _check("num_samples", self.num_samples, self.num_samples >= 1, ">= 1")
        blocks_fit = 1 <= self.num_data_blocks <= self.num_samples
        _check("num_data_blocks", self.num_data_blocks, blocks_fit, f"1..{self.num_samples}")
        _check("num_parameter_blocks", self.num_parameter_blocks, self.num_parameter_blocks >= 1, ">= 1")
        _check("mini_batch", self.mini_batch, self.mini_batch >= 1, ">= 1")
        _check("turns", self.turns, self.turns in ("per_worker", "shared"), "per_worker, shared")
        is_possible = self.turns == "shared" or not self.has_barrier
        _check("has_barrier", self.has_barrier, is_possible, "False with turns per_worker")
        for name in (
            "pull_bytes",
            "push_bytes",
            "pull_bytes_per_sample",
            "push_bytes_per_sample",
            "turn_overhead_s",
            "model_bytes",
            "sample_bytes",
        ):
            value = getattr(self, name)
            _check(name, value, 0 <= value < math.inf, ">= 0 and finite")

    @property
    def samples_per_block(self) -> float:
        """Mean size of a data block. Sizes differ by at most one sample, which the model leaves out."""
        return self.num_samples / self.num_data_blocks

    @property
    def shared_turns(self) -> int:
        """Steps of an epoch with shared turns."""
        return -(-self.num_samples // self.mini_batch)

    @property
    def turn_bytes(self) -> float:
        """Bytes of a turn, pulled and pushed."""
        return self.pull_bytes + self.push_bytes

    @property
    def bytes_per_sample(self) -> float:
        """Like `turn_bytes`, for each sample of the turn."""
        return self.pull_bytes_per_sample + self.push_bytes_per_sample

    @property
    def full_turn_bytes(self) -> float:
        """Bytes of a turn with `mini_batch` samples."""
        return self.turn_bytes + self.mini_batch * self.bytes_per_sample

    @property
    def busier_share(self) -> float:
        """Bytes of a full turn that go the busier way, as a share of all: 0.5 to 1."""
        pulled = self.pull_bytes + self.mini_batch * self.pull_bytes_per_sample
        return (
            max(pulled, self.full_turn_bytes - pulled) / self.full_turn_bytes if self.full_turn_bytes else 1.0
        )

    def serve_s_per_byte(self, machine: Machine) -> float:
        """Seconds per pulled or pushed byte that a machine serves.

        Both ways of its link and its processor work side by side; the slowest of them counts. The processor
        handles the bytes of both ways.
        """
        return max(self.busier_share / machine.bandwidth, machine.service_s_per_byte)

    def num_turns(self, num_samples: float) -> int:
        """Turns of an epoch of a worker with so many samples; a worker without samples takes none."""
        if num_samples <= 0:
            return 0
        if self.turns == "shared":
            return self.shared_turns
        return max(1, math.ceil(num_samples / self.mini_batch - _WHOLE))

    def most_data_blocks(self, machine: Machine) -> int:
        """Data blocks that a worker has memory for, beside the parameters that it pulls and pushes."""
        kept = self.turn_bytes + self.mini_batch * self.bytes_per_sample
        return _blocks_within(
            machine.memory_bytes - kept, self.samples_per_block * self.sample_bytes, self.num_data_blocks
        )

    def most_parameter_blocks(self, machine: Machine) -> int:
        """Parameter blocks that a server has memory for."""
        size = self.model_bytes / self.num_parameter_blocks
        return _blocks_within(machine.memory_bytes, size, self.num_parameter_blocks)


@dataclass(frozen=True, slots=True)
class Configuration:
    """Which machine does what, and with how much.

    Attributes:
        roles: one per machine; workers and servers are disjoint ([PS] Fig. 3.2, line 17), and machines may
            stand by.
        data_blocks: data blocks of each machine: at least one for a worker, none for the others.
        parameter_blocks: parameter blocks of each machine: at least one for a server, none for the others.

    Raises: PolicyError: counts and roles contradict each other.
    """

    roles: tuple[Role, ...]
    data_blocks: tuple[int, ...]
    parameter_blocks: tuple[int, ...]

    def __post_init__(self) -> None:
        if not len(self.roles) == len(self.data_blocks) == len(self.parameter_blocks):
            raise PolicyError("a configuration needs a role and two counts for each machine")
        rows = zip(self.roles, self.data_blocks, self.parameter_blocks, strict=True)
        for i, (role, data, parameters) in enumerate(rows):
            fits = (role == "worker") == (data > 0) and (role == "server") == (parameters > 0)
            if role not in ROLES or not fits or min(data, parameters) < 0:
                raise PolicyError(
                    f"machine {i}: got {role} with {data} data blocks and {parameters} parameter blocks, "
                    "allowed: data blocks for a worker, parameter blocks for a server, none on standby"
                )

    @classmethod
    def of_blocks(cls, data_blocks: Sequence[int], parameter_blocks: Sequence[int]) -> Configuration:
        """The configuration in which each machine has the role that its blocks imply."""
        roles: list[Role] = [
            "worker" if data else "server" if parameters else "standby"
            for data, parameters in zip(data_blocks, parameter_blocks, strict=True)
        ]
        return cls(tuple(roles), tuple(data_blocks), tuple(parameter_blocks))

    @property
    def workers(self) -> tuple[int, ...]:
        """Machines that are workers, in ascending order."""
        return tuple(i for i, role in enumerate(self.roles) if role == "worker")

    @property
    def servers(self) -> tuple[int, ...]:
        """Machines that are servers, in ascending order."""
        return tuple(i for i, role in enumerate(self.roles) if role == "server")


@dataclass(frozen=True, slots=True)
class EpochCost:
    """The times of an epoch, by machine; 0 for machines that are no workers.

    Attributes:
        compute_s: [PS] C_comp.
        communication_s: [PS] C_comm, with the overhead of turns.
    """

    compute_s: tuple[float, ...]
    communication_s: tuple[float, ...]

    @property
    def worker_s(self) -> tuple[float, ...]:
        """Epoch time of each machine ([PS] Eq. 3.2)."""
        return tuple(a + b for a, b in zip(self.compute_s, self.communication_s, strict=True))

    @property
    def epoch_s(self) -> float:
        """Epoch time of the slowest worker ([PS] Eq. 3.1)."""
        return max(self.worker_s)

    @property
    def link_share(self) -> float:
        """Share of the epoch in which the slowest worker waits for links and servers, 0..1."""
        slowest_s, i = max((seconds, i) for i, seconds in enumerate(self.worker_s))
        return self.communication_s[i] / slowest_s


def epoch_cost(problem: Problem, configuration: Configuration) -> EpochCost:
    """Predict the epoch time of each worker.

    A worker is as fast as its own computing and link, or as the slowest server that serves all workers.

    Raises: PolicyError: the configuration does not fit the problem.
    Source: [PS] Eq. 3.1 to 3.4, with other assumptions. The paper adds the time of serving all workers to the
        time of computing, C_comp + ceil(d/B) * max(w * m_j / b, M / b), as if all workers communicated at the
        same time and servers idled while they compute. That holds neither here nor in its own system, where
        pushes do not block. Against frame-by-frame simulations (`hpcbal.simulator.paramserver`), which
        emulated runs confirm, its optimum took up to 1.5 times as long as the best. Instead:

        (1) Own time. A pull waits for the worker's own last push, so both follow one another on the worker's
        link: C_comp + T * (pulled + pushed) * sum_j(f_j / b_ij) for T turns and shares f_j of the model.
        (2) Served time. The slowest server answers and receives what w workers pull and push in T turns each;
        its link is full-duplex, so the busier way counts: w * T * max_j(f_j * max(pulled, pushed) / b_j).
        (3) Without a barrier, servers work while workers compute, and the longer of both times counts: a
        worker waits for a server, or a server for workers. With a barrier, all workers ask at once, and the
        one that is served last waits for the w - 1 others before it begins its own turn: (1) plus (2) with
        w - 1 in place of w.

        Also beyond the paper: pull and push are separate inputs, as sparse access moves less than the model.
        A server's link is shared by all and sends to a fast worker while a slow one still receives, so it
        counts alone and not as b_ij. The shared rule, bytes that grow with samples, the processor of servers
        and the overhead of a turn.

        (4) Links that all transfers share: see `on_shared_links`.
    """
    _check_fit(problem, configuration)
    workers, servers = configuration.workers, configuration.servers
    machines = problem.machines
    share = {j: configuration.parameter_blocks[j] / problem.num_parameter_blocks for j in servers}
    slowest = max(share[j] * problem.serve_s_per_byte(machines[j]) for j in servers)
    fullest_s = max(share[j] / machines[j].bandwidth for j in servers)
    processing_s = max(share[j] * machines[j].service_s_per_byte for j in servers)
    compute, communication = [0.0] * len(machines), [0.0] * len(machines)
    served_s = served_bytes(problem, len(workers)) * slowest
    for i in workers:
        samples = configuration.data_blocks[i] * problem.samples_per_block
        turns = problem.num_turns(samples)
        if problem.turns == "shared":
            moved = turns * problem.turn_bytes + samples * problem.bytes_per_sample
        else:
            moved = turns * problem.full_turn_bytes
        link_s = sum(share[j] / min(machines[i].bandwidth, machines[j].bandwidth) for j in servers)
        compute[i] = machines[i].seconds_per_sample * samples
        own_s = moved * link_s + turns * problem.turn_overhead_s
        if problem.has_barrier and problem.links == "in_turn":
            communication[i] = own_s + served_s
        elif problem.has_barrier:
            shared_s = on_shared_links(problem, len(workers), own_s, moved * link_s, moved * fullest_s)
            communication[i] = max(shared_s, own_s + served_bytes(problem, len(workers)) * processing_s)
        else:
            served_turns = 1 if problem.turns == "shared" else turns
            alone_s = compute[i] + own_s
            if problem.links == "shared":
                alone_s = on_shared_links(problem, len(workers), alone_s, moved * link_s, moved * fullest_s)
            communication[i] = max(alone_s, served_turns * served_s) - compute[i]
    return EpochCost(tuple(compute), tuple(communication))


def on_shared_links(
    problem: Problem, num_workers: int, own_s: float, link_s: float, fullest_s: float
) -> float:
    """Return the time of a worker's turns if all transfers of a link share it.

    With a barrier all workers pull at once, and push at once. Otherwise nobody waits if all workers together
    fill no server's link. If they do, the two ways of the fullest server are queues of a closed network: a
    worker meets the others there as often as they are there, and each of them gets its part of the link. This
    is solved for workers that are alike, by Schweitzer's approximation of mean value analysis:
    t = z + 2 r, r = d (1 + (w - 1) r / t) for w workers, d seconds one way and z seconds elsewhere.

    Args:
        problem: says whether there is a barrier.
        num_workers: >= 1.
        own_s: of the turns if the worker is alone.
        link_s: of this, on its link.
        fullest_s: time of its bytes on the link of the server that takes longest for them, one way after the
            other.
    """
    if problem.has_barrier:
        return own_s + max(0.0, num_workers * fullest_s - link_s)
    if num_workers * fullest_s <= link_s * (1 + _WHOLE):
        return own_s
    one_way_s, apart_s = fullest_s / 2, max(0.0, own_s - fullest_s)
    total_s = apart_s + (num_workers + 1) * one_way_s
    root = total_s * total_s - 4 * apart_s * (num_workers - 1) * one_way_s
    return max(own_s, (total_s + math.sqrt(max(0.0, root))) / 2)


def served_bytes(problem: Problem, num_workers: int) -> float:
    """Bytes of all workers for which a worker waits, pulled and pushed.

    Args:
        num_workers: >= 1.

    Returns: in a turn of each worker (`per_worker`), or in an epoch (`shared`). With a barrier, those of the
        other workers.
    """
    if problem.turns == "per_worker":
        return num_workers * problem.full_turn_bytes
    others = num_workers - 1 if problem.has_barrier else num_workers
    per_worker = problem.shared_turns * problem.turn_bytes
    return others * per_worker + others / num_workers * problem.num_samples * problem.bytes_per_sample


def _check_fit(problem: Problem, configuration: Configuration) -> None:
    if len(configuration.roles) != len(problem.machines):
        raise PolicyError(
            f"got roles of {len(configuration.roles)} machines, the problem has {len(problem.machines)}"
        )
    data, parameters = sum(configuration.data_blocks), sum(configuration.parameter_blocks)
    if (data, parameters) != (problem.num_data_blocks, problem.num_parameter_blocks):
        raise PolicyError(
            f"got {data} data blocks and {parameters} parameter blocks, "
            f"the problem has {problem.num_data_blocks} and {problem.num_parameter_blocks}"
        )


def _blocks_within(memory_bytes: float, block_bytes: float, num_blocks: int) -> int:
    if memory_bytes < 0:
        return 0
    if block_bytes * num_blocks <= memory_bytes:
        return num_blocks
    return int(memory_bytes / block_bytes)


def _check(name: str, value: object, ok: bool, allowed: str) -> None:
    if not ok:
        raise PolicyError(f"{name}: got {value!r}, allowed: {allowed}")
