"""Configurations that use some of the machines only, because a site has taken the others back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from hpcbal.errors import PolicyError
from hpcbal.policies.batching import split_evenly
from hpcbal.policies.configuring.cost_model import Configuration, Problem, epoch_cost
from hpcbal.policies.configuring.heterogeneous import best_heterogeneous
from hpcbal.policies.configuring.homogeneous import best_homogeneous

_SLOWER = (1.0, 1.5, 2.0)
"""How much slower servers are taken to be, where links are shared and machines unlike."""


def best_configuration(problem: Problem) -> Configuration:
    """Return the configuration with the shortest epoch.

    The search over unlike machines knows only links that carry one message after another. If links are
    shared, it proposes configurations for servers of several speeds, and the best of these is returned.

    Raises:
        PolicyError: there are too few machines, or the blocks do not fit into their memory.
    """
    if len(set(problem.machines)) == 1:
        return best_homogeneous(problem)
    if problem.links == "in_turn":
        return best_heterogeneous(problem).configuration
    proposed = [best_heterogeneous(_with_slower_servers(problem, factor)).configuration for factor in _SLOWER]
    return min(proposed, key=lambda each: epoch_cost(problem, each).epoch_s)


def _with_slower_servers(problem: Problem, factor: float) -> Problem:
    machines = tuple(
        replace(each, service_s_per_byte=factor * problem.serve_s_per_byte(each)) for each in problem.machines
    )
    return replace(problem, machines=machines, links="in_turn")


def best_within(problem: Problem, in_use: Collection[int]) -> Configuration:
    """The configuration with the shortest epoch in which all other machines stand by.

    Args:
        in_use: machines that may have blocks, at least 2.

    Raises:
        PolicyError: there are too few, or the blocks do not fit into their memory.
    """
    chosen = _checked(in_use, len(problem.machines))
    machines = tuple(problem.machines[i] for i in chosen)
    found = best_configuration(replace(problem, machines=machines))
    return _expanded(found.data_blocks, found.parameter_blocks, chosen, len(problem.machines))


def spread(current: Configuration, in_use: Collection[int]) -> Configuration:
    """The blocks spread evenly over the machines in use, with workers and servers in today's proportion.

    For a change that cannot wait until anything is known about the job. Machines keep their role where the
    proportion allows it; servers are missing or too many at the end of the machines.

    Args:
        in_use: machines that may have blocks, at least 2.

    Raises:
        PolicyError: there are too few.
    """
    chosen = _checked(in_use, len(current.roles))
    num_workers, num_servers = len(current.workers), len(current.servers)
    share = num_servers / max(1, num_workers + num_servers)
    blocks, parameters = sum(current.data_blocks), sum(current.parameter_blocks)
    servers = min(max(1, round(share * len(chosen)), len(chosen) - blocks), len(chosen) - 1)
    order = {"worker": 0, "standby": 1, "server": 2}
    by_role = sorted(chosen, key=lambda i: (order[current.roles[i]], i))
    workers, serving = by_role[: len(chosen) - servers], by_role[len(chosen) - servers :]
    serving = serving[: min(len(serving), parameters)]
    data, held = [0] * len(current.roles), [0] * len(current.roles)
    for owners, counts, total in ((workers, data, blocks), (serving, held, parameters)):
        for i, number in zip(owners, split_evenly(total, len(owners)), strict=True):
            counts[i] = number
    return Configuration.of_blocks(data, held)


def _checked(in_use: Collection[int], num_machines: int) -> list[int]:
    chosen = sorted(set(in_use))
    if len(chosen) < 2 or chosen[0] < 0 or chosen[-1] >= num_machines:
        raise PolicyError(
            f"machines in use: got {chosen}, allowed: at least 2 of 0..{num_machines - 1}, "
            "a worker and a server"
        )
    return chosen


def _expanded(
    data: Sequence[int], parameters: Sequence[int], chosen: Sequence[int], num_machines: int
) -> Configuration:
    """The blocks of some machines as those of all."""
    all_data, all_parameters = [0] * num_machines, [0] * num_machines
    for i, own_data, own_parameters in zip(chosen, data, parameters, strict=True):
        all_data[i], all_parameters[i] = own_data, own_parameters
    return Configuration.of_blocks(all_data, all_parameters)
