"""Whether a host has too few cores for its ranks."""

from __future__ import annotations

from hpcbal.cluster.roles import Roles

MOST_RANKS_PER_CORE = 4
"""A few ranks can share a core, as in the quick start on two cores. Far more only wait for each other."""


def crowding(num_ranks: int, num_cores: int) -> str | None:
    """Describe a host with far more busy ranks than cores; None if there is nothing to say.

    Args:
        num_ranks: ranks of the host that compute: trainers and preprocessors.
        num_cores: cores that they may use together; 0 if unknown.
    """
    if not num_cores or num_ranks <= MOST_RANKS_PER_CORE * num_cores:
        return None
    cores = "1 core" if num_cores == 1 else f"{num_cores} cores"
    return (
        f"{num_ranks} trainers and preprocessors share {cores} and will mostly wait for each other; lower "
        "slots.per_node, use more nodes, or request more cores for each rank"
    )


def crowded_hosts(roles: Roles, *, emulated: bool) -> list[str]:
    """Describe each host with far more busy ranks than cores.

    Args:
        emulated: whether the trainers sleep for most of a step.
    """
    busy = {*roles.preprocessor_ranks, *(() if emulated else roles.trainer_ranks)}
    num_ranks: dict[str, int] = {}
    num_cores: dict[str, int] = {}  # "nodes" that are parts of one machine share its cores
    for info in roles.ranks:
        num_ranks[info.host] = num_ranks.get(info.host, 0) + (info.rank in busy)
        num_cores[info.host] = max(num_cores.get(info.host, 0), info.num_cores)
    found = {host: crowding(number, num_cores[host]) for host, number in num_ranks.items()}
    return [f"{host}: {text}" for host, text in found.items() if text is not None]
