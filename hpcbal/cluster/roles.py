"""The roles of the job's ranks, and lists of executors as users write them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hpcbal.cluster.devices import device_of
from hpcbal.cluster.layout import Cluster, Node
from hpcbal.errors import ClusterError, InputError

SCHEDULER_RANK = 0
LEAST_EXECUTORS = 2
"""A worker and a server."""

SCHEDULER, PREPROCESSOR, TRAINER, EXECUTOR = "scheduler", "preprocessor", "trainer", "executor"
"""Names of the roles."""


@dataclass(frozen=True, slots=True)
class RankInfo:
    """Facts that one rank reports about itself.

    Attributes:
        rank: rank in the world communicator.
        node: index of its node; ranks of a node share memory; nodes are numbered by their first rank.
        host: host name.
        pid: process id on that host.
        num_gpus: GPUs of its node that any rank there sees; 0 on a machine without GPUs.
        num_cores: cores of its node that the ranks there may use together; 0 if unknown.
        devices: ids of the GPUs that this rank sees, in the order in which libraries number them.
    """

    rank: int
    node: int
    host: str
    pid: int
    num_gpus: int
    num_cores: int = 0
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Roles:
    """The role of every rank.

    Attributes:
        ranks: all ranks in order.
        cluster: nodes with their slots.
        trainer_ranks: world rank that trains on slot j, shape (num_slots,).
        preprocessor_ranks: world ranks, taken from the nodes in turn, so that any prefix is spread over
            nodes.
        gateway_of_node: per node, the preprocessor rank that receives blocks made on other nodes.
        executor_ranks: in a parameter-server job, all ranks but the first; there are no trainers then.
        slots_per_gpu: trainers that share a GPU.
    """

    ranks: tuple[RankInfo, ...]
    cluster: Cluster
    trainer_ranks: tuple[int, ...]
    preprocessor_ranks: tuple[int, ...]
    gateway_of_node: tuple[int, ...]
    executor_ranks: tuple[int, ...] = ()
    slots_per_gpu: int = 1

    @property
    def node_of_rank(self) -> tuple[int, ...]:
        return tuple(info.node for info in self.ranks)

    @property
    def ranks_by_role(self) -> dict[str, tuple[int, ...]]:
        """The ranks of each role, in the role's own order; every rank has one role."""
        if self.executor_ranks:
            return {SCHEDULER: (SCHEDULER_RANK,), EXECUTOR: self.executor_ranks}
        return {
            SCHEDULER: (SCHEDULER_RANK,),
            PREPROCESSOR: self.preprocessor_ranks,
            TRAINER: self.trainer_ranks,
        }

    def role_of(self, rank: int) -> str:
        """Name of the role of `rank`."""
        return next(role for role, ranks in self.ranks_by_role.items() if rank in ranks)

    def title_of(self, rank: int) -> str:
        """Name of `rank` for people: its slot if it trains, else its role."""
        role = self.role_of(rank)
        return f"slot {self.trainer_ranks.index(rank)}" if role == TRAINER else role

    def local_slot(self, rank: int) -> int:
        """Index of a trainer among its node's trainers."""
        return self._on_node(self.trainer_ranks, self.ranks[rank].node).index(rank)

    def seen_by_slots(self, node: int) -> tuple[tuple[str, ...], ...]:
        """The devices that each trainer of a node sees, in the order of local slots."""
        return tuple(self.ranks[rank].devices for rank in self._on_node(self.trainer_ranks, node))

    def gpu_of(self, rank: int) -> tuple[int, str] | None:
        """The GPU of a trainer: its index among those that the rank sees, and its id; None without GPUs.

        Raises:
            ClusterError: if more than `slots_per_gpu` trainers of the node would use one GPU.
        """
        info = self.ranks[rank]
        seen, slot = self.seen_by_slots(info.node), self.local_slot(rank)
        index = device_of(seen, slot, info.host, self.slots_per_gpu)
        return None if index is None else (index, info.devices[index])

    def local_producer(self, rank: int) -> int:
        """Index of a preprocessor among its node's preprocessors."""
        return self._on_node(self.preprocessor_ranks, self.ranks[rank].node).index(rank)

    def num_local_producers(self, node: int) -> int:
        return len(self._on_node(self.preprocessor_ranks, node))

    def preprocessors_asked_by(self, rank: int) -> tuple[int, ...]:
        """Of each node, the preprocessor that `rank` asks for samples: ranks are spread over all of them."""
        each = (self._on_node(self.preprocessor_ranks, node) for node in range(len(self.gateway_of_node)))
        return tuple(ranks[rank % len(ranks)] for ranks in each)

    def _on_node(self, ranks: Sequence[int], node: int) -> list[int]:
        return sorted(rank for rank in ranks if self.ranks[rank].node == node)


def num_ranks_needed(num_slots: int, num_preprocessors: int, *, first_node: bool = True) -> int:
    """Ranks of one node: its slots, its preprocessors, and on the first node the scheduler."""
    return num_slots + num_preprocessors + (1 if first_node else 0)


def assign_roles(
    ranks: Sequence[RankInfo],
    slots_per_node: int | None,
    preprocessors_per_node: int,
    slots_per_gpu: int = 1,
) -> Roles:
    """Assign a role to every rank.

    Rank 0 is the scheduler. On each node the last ranks are trainers, one per slot; all ranks before them
    (after rank 0) are preprocessors, at least `preprocessors_per_node`.

    Args:
        ranks: one entry per rank, in order of rank; nodes numbered by their first rank.
        slots_per_node: trainers per node; None: `slots_per_gpu` for each of the node's GPUs, or on a node
            without GPUs all remaining ranks.
        preprocessors_per_node: least number of preprocessors on each node, >= 1.
        slots_per_gpu: trainers that share a GPU, >= 1.

    Raises:
        ClusterError: if a node has too few ranks.
    """
    num_nodes = max(info.node for info in ranks) + 1
    nodes: list[Node] = []
    trainers: list[int] = []
    preprocessors: list[list[int]] = []
    for index in range(num_nodes):
        infos = [info for info in ranks if info.node == index]
        free = [info.rank for info in infos if info.rank != SCHEDULER_RANK]
        gpus = max(info.num_gpus for info in infos)
        wanted = slots_per_node if slots_per_node is not None else gpus * slots_per_gpu
        if not wanted:
            wanted = max(1, len(free) - preprocessors_per_node)
        if len(free) < wanted + preprocessors_per_node:
            raise ClusterError(
                _too_few_ranks(infos[0].host, index, len(infos), wanted, preprocessors_per_node)
            )
        cut = len(free) - wanted
        nodes.append(Node(infos[0].host, wanted))
        preprocessors.append(free[:cut])
        trainers.extend(free[cut:])
    dealt = [
        group[turn]
        for turn in range(max(len(group) for group in preprocessors))
        for group in preprocessors
        if turn < len(group)
    ]
    return Roles(
        ranks=tuple(ranks),
        cluster=Cluster(tuple(nodes)),
        trainer_ranks=tuple(trainers),
        preprocessor_ranks=tuple(dealt),
        gateway_of_node=tuple(group[0] for group in preprocessors),
        slots_per_gpu=slots_per_gpu,
    )


def assign_executors(ranks: Sequence[RankInfo]) -> Roles:
    """Assign the roles of a parameter-server job: rank 0 is its master, all others are executors.

    Args:
        ranks: one entry per rank, in order of rank; nodes numbered by their first rank.

    Raises:
        ClusterError: if there are fewer than two executors.
    """
    executors = tuple(info.rank for info in ranks if info.rank != SCHEDULER_RANK)
    if len(executors) < LEAST_EXECUTORS:
        raise ClusterError(
            f"parameter-server jobs need at least {1 + LEAST_EXECUTORS} ranks (a master and "
            f"{LEAST_EXECUTORS} executors), got {len(ranks)}; start more ranks "
            f"(mpirun -n {1 + LEAST_EXECUTORS})"
        )
    num_nodes = max(info.node for info in ranks) + 1
    by_node = [[info for info in ranks if info.node == node] for node in range(num_nodes)]
    nodes = [Node(infos[0].host, sum(info.rank in executors for info in infos)) for infos in by_node]
    return Roles(tuple(ranks), Cluster(tuple(nodes)), (), (), (), executors)


def _too_few_ranks(host: str, index: int, given: int, slots: int, preprocessors: int) -> str:
    first = index == 0
    needed = num_ranks_needed(slots, preprocessors, first_node=first)
    scheduler = "1 scheduler + " if first else ""
    return (
        f"node {index} ({host}) has {given} rank(s), but the config needs {needed} there: {scheduler}"
        f"{preprocessors} preprocessor(s) + {slots} trainer slot(s); start more ranks "
        f"(mpirun -n {needed} on one node), or lower slots.per_node ({slots})"
    )


_RANKS = re.compile(r"[0-9]{1,9}(-[0-9]{1,9})?(\s*,\s*[0-9]{1,9}(-[0-9]{1,9})?)*")


def executors_of(text: str, executors: Sequence[int]) -> tuple[int, ...]:
    """The executors that a text names.

    Args:
        text: `all`; a number, which means the first so many; or ranks such as `1-4,7` with a comma or hyphen.
        executors: ranks of all executors, ascending.

    Returns: ranks, ascending, at least two.

    Raises:
        InputError: if the text is something else.
    """
    given = text.strip()
    first, last = executors[0], executors[-1]
    wrong = InputError(
        f"executors: got {given[:40]!r}, allowed: all, a number of executors from {LEAST_EXECUTORS} to "
        f"{len(executors)}, or ranks of {first} to {last} such as {first}-{first + 1},{last}"
    )
    if given == "all":
        return tuple(executors)
    if not _RANKS.fullmatch(given):
        raise wrong
    if given.isdigit():
        count = int(given)
        if not LEAST_EXECUTORS <= count <= len(executors):
            raise wrong
        return tuple(executors[:count])
    chosen: set[int] = set()
    for part in given.split(","):
        low, _, high = part.partition("-")
        begin, end = int(low), int(high or low)
        if not first <= begin <= end <= last:
            raise wrong
        chosen.update(range(begin, end + 1))
    chosen.intersection_update(executors)
    if len(chosen) < LEAST_EXECUTORS:
        raise wrong
    return tuple(sorted(chosen))
