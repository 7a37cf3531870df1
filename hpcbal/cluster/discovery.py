"""Find the nodes and accelerators of the ranks that were started, and assign roles."""

from __future__ import annotations

import os
import socket
from typing import cast

from mpi4py import MPI

from hpcbal.cluster.cgroup import Cores, num_usable
from hpcbal.cluster.devices import visible_gpus
from hpcbal.cluster.roles import RankInfo, Roles, assign_executors, assign_roles


def split_by_node(world: MPI.Comm, ranks_per_node: int | None) -> MPI.Intracomm:
    """Make the communicator of the ranks that share memory with this one; collective.

    Args:
        ranks_per_node: split the ranks of one machine into several "nodes" of this many ranks.
    """
    shared = world.Split_type(MPI.COMM_TYPE_SHARED, key=world.rank)
    if ranks_per_node is None:
        return cast("MPI.Intracomm", shared)
    try:
        cut = shared.Split(color=shared.rank // ranks_per_node, key=world.rank)
        return cast("MPI.Intracomm", cut)
    finally:
        shared.Free()


def discover(
    world: MPI.Comm,
    node_comm: MPI.Comm,
    slots_per_node: int | None,
    preprocessors_per_node: int,
    device: str,
    slots_per_gpu: int = 1,
) -> Roles:
    """Ask every rank where it runs and assign roles; collective, with the same result on all ranks.

    Args:
        slots_per_node, preprocessors_per_node: see `assign_roles`.
        device: `slots.device`.
        slots_per_gpu: see `assign_roles`.

    Raises:
        ClusterError: if a node has too few ranks.
    """
    infos = infos_of_ranks(world, node_comm, device)
    return assign_roles(infos, slots_per_node, preprocessors_per_node, slots_per_gpu)


def discover_executors(world: MPI.Comm, node_comm: MPI.Comm) -> Roles:
    """Ask every rank where it runs, for a parameter-server job; collective, the same result on all ranks.

    Raises:
        ClusterError: if there are too few ranks.
    """
    return assign_executors(infos_of_ranks(world, node_comm, "cpu"))


def infos_of_ranks(world: MPI.Comm, node_comm: MPI.Comm, device: str) -> tuple[RankInfo, ...]:
    """Return the facts about every rank, in order of rank; collective, the same on all ranks.

    Args:
        device: `slots.device`.
    """
    first_rank = node_comm.bcast(world.rank, root=0)
    mine = (first_rank, socket.gethostname(), os.getpid(), visible_gpus(device), Cores.of_this_process())
    everyone = world.allgather(mine)
    node_index = {first: i for i, first in enumerate(sorted({entry[0] for entry in everyone}))}
    # Launchers that pin one GPU to each rank show each rank only that GPU; together they are the node's GPUs.
    gpus_of_node: dict[int, set[str]] = {}
    cores_of_node: dict[int, list[Cores]] = {}
    for first, _, _, gpus, cores in everyone:
        gpus_of_node.setdefault(first, set()).update(gpus)
        cores_of_node.setdefault(first, []).append(cores)
    num_cores = {first: num_usable(some) for first, some in cores_of_node.items()}
    return tuple(
        RankInfo(rank, node_index[first], host, pid, len(gpus_of_node[first]), num_cores[first], gpus)
        for rank, (first, host, pid, gpus, _) in enumerate(everyone)
    )
