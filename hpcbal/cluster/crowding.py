"""How many ranks a host's cores are good for, and whether there are too many."""

from __future__ import annotations

from hpcbal.cluster.roles import Roles

MOST_RANKS_PER_CORE = 4
"""A few ranks can share a core, as in the quick start on two cores. Far more only wait for each other."""


CORES_TO_SET_ASIDE = 8
"""On machines with this many cores or more, preprocessors get cores of their own. With fewer cores that would
cost more than it brings, because most preprocessors are busy for a small part of the time."""


def slots_on_cores(num_cores: int, num_preprocessors: int, most_useful: int | None = None) -> int:
    """Number of trainers for a machine without GPUs: one per core, as far as there is work for them.

    With fewer trainers than cores, each trainer gets several threads.

    Args:
        num_cores: cores that may be used, >= 1.
        num_preprocessors: preprocessors on the machine, >= 1.
        most_useful: no more trainers than this ever work at the same time; None: no limit.
    """
    free = num_cores - num_preprocessors if num_cores >= CORES_TO_SET_ASIDE else num_cores
    return max(1, free if most_useful is None else min(free, most_useful))


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
    found = {host: crowding(*counts) for host, counts in _busy_ranks(roles, emulated=emulated).items()}
    return [f"{host}: {text}" for host, text in found.items() if text is not None]


def slots_share_cores(roles: Roles, *, emulated: bool) -> bool:
    """Whether slots are cores, and a host has fewer of them than busy ranks.

    A trainer group gains little from a second slot then: both compute on cores that other ranks need too.

    Args:
        emulated: as for `crowded_hosts`.
    """
    if emulated or any(info.num_gpus for info in roles.ranks):
        return False
    counts = _busy_ranks(roles, emulated=False).values()
    return any(0 < num_cores < num_ranks for num_ranks, num_cores in counts)


def _busy_ranks(roles: Roles, *, emulated: bool) -> dict[str, tuple[int, int]]:
    """The number of ranks that compute, and of cores, by host."""
    busy = {*roles.preprocessor_ranks, *(() if emulated else roles.trainer_ranks)}
    counts: dict[str, tuple[int, int]] = {}
    for info in roles.ranks:
        num_ranks, num_cores = counts.get(info.host, (0, 0))
        # "Nodes" that are parts of one machine share its cores.
        counts[info.host] = num_ranks + (info.rank in busy), max(num_cores, info.num_cores)
    return counts
