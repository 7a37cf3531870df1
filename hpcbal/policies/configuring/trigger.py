"""Decide when to look for a better configuration, on which machines, and whether it is worth the change."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hpcbal.errors import PolicyError
from hpcbal.policies.batching import split_evenly
from hpcbal.policies.configuring.changes import Move, Plan
from hpcbal.policies.configuring.cost_model import Configuration, Machine, Problem, epoch_cost
from hpcbal.policies.configuring.heterogeneous import best_heterogeneous
from hpcbal.policies.configuring.homogeneous import best_homogeneous
from hpcbal.policies.configuring.metrics import Metrics

_STALL_SHARE = 0.05
"""Largest share of a change's time in which training stands still: the runtime keeps to it."""


@dataclass(frozen=True, slots=True)
class MovingCost:
    """The cost of a change.

    Attributes:
        bytes_moved: of all blocks.
        change_s: from the first block that leaves to the last that arrives.
        lost_s: training time that the change costs.
    """

    bytes_moved: float
    change_s: float
    lost_s: float


def cost_of_moving(
    plan: Plan,
    machines: Sequence[Machine],
    data_block_bytes: float,
    parameter_block_bytes: float,
    link_share: float,
) -> MovingCost:
    """Predict the time of a change from the bytes on each link.

    Each machine sends and receives at its bandwidth, both at once. A change takes as long as the busiest
    direction of a link, but no less than the slowest chain of operations that wait for each other. Training
    goes on meanwhile. It loses 5 % of that time, in which it stands still, and `link_share` for links that it
    shares with the blocks: a turn takes longer if its bytes wait behind a block.

    Args:
        data_block_bytes, parameter_block_bytes: mean size of a block.
        link_share: 0..1, the share of an epoch in which a worker waits for its link.
    """
    sizes = {"data": data_block_bytes, "parameters": parameter_block_bytes}
    sent: dict[tuple[int, str], float] = {}
    total = 0.0
    for move in plan.moves:
        size = len(move.blocks) * sizes[move.what]
        total += size
        for key in ((move.source, "sends"), (move.destination, "receives")):
            sent[key] = sent.get(key, 0.0) + size
    busiest_s = max((size / machines[i].bandwidth for (i, _), size in sent.items()), default=0.0)
    ends: list[float] = []
    for operation, needed in zip(plan.operations, plan.after, strict=True):
        seconds = 0.0
        if isinstance(operation, Move):
            slower = min(machines[operation.source].bandwidth, machines[operation.destination].bandwidth)
            seconds = len(operation.blocks) * sizes[operation.what] / slower
        ends.append(seconds + max((ends[i] for i in needed), default=0.0))
    change_s = max(busiest_s, max(ends, default=0.0))
    return MovingCost(total, change_s, change_s * min(1.0, _STALL_SHARE + link_share))


Reason = Literal["gain", "resources", "forced"]


@dataclass(frozen=True, slots=True)
class Trigger:
    """Settings of the decision.

    Attributes:
        min_gain: least part of an epoch that a change must save, 0..1.
        min_turns: fresh turns of every worker before a decision, >= 1.

    Source: [PS] Sec. 3.3.1, Optimization Trigger Policy. Deviation: the cost of the change counts; the paper
        leaves it out.
    """

    min_gain: float = 0.05
    min_turns: int = 5

    def __post_init__(self) -> None:
        if not 0 <= self.min_gain < 1:
            raise PolicyError(f"min_gain: got {self.min_gain}, allowed: at least 0 and below 1")
        if self.min_turns < 1:
            raise PolicyError(f"min_turns: got {self.min_turns}, allowed: at least 1")

    def is_due(self, metrics: Metrics, configuration: Configuration) -> bool:
        """Whether every worker has been measured often enough since the last change."""
        fresh = [metrics.executors[i].fresh_turns for i in configuration.workers]
        return bool(fresh) and min(fresh) >= self.min_turns

    def decide(
        self,
        current_s: float,
        wanted_s: float,
        moving: MovingCost,
        epochs_left: float,
        resources_changed: bool = False,
        leaving: Collection[int] = (),
    ) -> ChangeDecision:
        """Whether to change to the wanted configuration.

        The gain is what an epoch gets shorter. It must reach `min_gain`, and over the epochs that are left it
        must save more time than the change costs. Machines that leave have to be emptied whatever it costs.

        Args:
            current_s, wanted_s: predicted epoch times, > 0. Both are predictions, so that an error of the
                model that both share cancels out.
            epochs_left: to the end of the job, at most.
            resources_changed: whether machines came or went, for the reason that is reported.
            leaving: machines that own blocks and must leave.
        """
        gain = 1.0 - wanted_s / current_s
        saved_s = (current_s - wanted_s) * epochs_left - moving.lost_s
        if leaving:
            return ChangeDecision(True, "forced", gain, saved_s)
        # A gain of exactly min_gain counts, whatever its last bit.
        change = gain >= self.min_gain - 1e-12 and gain > 0 and saved_s > 0
        return ChangeDecision(change, "resources" if resources_changed else "gain", gain, saved_s)


@dataclass(frozen=True, slots=True)
class ChangeDecision:
    """Whether to change, and why.

    Attributes:
        change: whether to change.
        reason: what made the change be considered.
        gain: predicted part of an epoch that is saved; negative if epochs get longer.
        saved_s: predicted time saved until the end of the job, less the cost of the change.
    """

    change: bool
    reason: Reason
    gain: float
    saved_s: float


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
