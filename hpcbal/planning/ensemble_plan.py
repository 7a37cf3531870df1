"""Plan a configuration on given nodes: one flotilla after another, and the ranks to request."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from hpcbal.cluster.launch_line import RanksToStart
from hpcbal.cluster.layout import Cluster
from hpcbal.cluster.roles import num_ranks_needed
from hpcbal.config import EnsembleConfig, RunConfig
from hpcbal.config.scheduling import settings_of, specs_of
from hpcbal.control.prediction import foreseen_flotillas
from hpcbal.errors import InputError
from hpcbal.events.ensemble import Schedule
from hpcbal.planning.rates import PlanRates
from hpcbal.policies.flotilla import Flotilla
from hpcbal.policies.placement import Placement, assign_slots
from hpcbal.policies.preprocessors import num_preprocessors

FORMAT = 1


@dataclass(frozen=True, slots=True)
class PlannedFlotilla:
    """One placed flotilla, with the preprocessors that feed it."""

    flotilla: Flotilla
    placement: Placement
    num_preprocessors: int


@dataclass(frozen=True, slots=True)
class EnsemblePlan:
    """The flotillas of an ensemble that are known in advance.

    Attributes:
        name: name of the ensemble.
        schedule: the schedule, given or chosen.
        num_dnns: number of DNNs in the ensemble.
        cluster: nodes with their trainer slots.
        ranks_per_node: ranks to start on each node; the same number on all nodes, as launchers prefer.
        max_preprocessors: how many of these ranks preprocess, over all nodes.
        rates: the rates that the plan uses.
        flotillas: in the order of training. With the global schedule, as if the DNNs of each flotilla
            converged together. With other schedules only the first one, if the rest depends on which DNN
            converges first.
        device: what the slots are: `gpu`, `cpu` (also if they are emulated), or `auto` if the nodes decide.
        gpus_per_node: GPUs to request on each node where slots are GPUs, or share them.
        cores_per_rank: cores to request for each rank; None: not given.
    """

    name: str
    schedule: Schedule
    num_dnns: int
    cluster: Cluster
    ranks_per_node: int
    max_preprocessors: int
    rates: PlanRates
    flotillas: tuple[PlannedFlotilla, ...]
    device: str = "auto"
    gpus_per_node: int = 0
    cores_per_rank: int | None = None

    @property
    def paradigm(self) -> str:
        return self.schedule.paradigm

    @property
    def num_ranks(self) -> int:
        return self.ranks_per_node * len(self.cluster.nodes)

    @property
    def preprocessors_per_node(self) -> tuple[int, ...]:
        """Preprocessors of each node; one fewer on the first node, which also holds the scheduler."""
        return tuple(
            self.ranks_per_node - node.num_slots - (index == 0)
            for index, node in enumerate(self.cluster.nodes)
        )


def known_slots_per_node(config: RunConfig, given: int | None) -> int:
    """Trainer slots per node: the given number, else the configured one.

    Raises:
        InputError: if neither is known.
    """
    if given is not None:
        return given
    if isinstance(config.slots.per_node, int):
        return config.slots.per_node
    raise InputError(
        "slots.per_node is auto, which is known only inside the allocation; "
        "give --slots-per-node N for a plan"
    )


def nodes_for(num_slots: int, per_node: int) -> tuple[int, int]:
    """(nodes, trainer slots per node) for `num_slots` in total.

    Raises:
        InputError: if it is neither part of one node nor a number of whole nodes.
    """
    if num_slots <= per_node:
        return 1, num_slots
    if num_slots % per_node:
        below = num_slots - num_slots % per_node
        raise InputError(
            f"--slots: got {num_slots}, allowed with {per_node} slots per node: up to {per_node}, or whole "
            f"nodes such as {below} or {below + per_node}; --slots-per-node changes the size of a node"
        )
    return num_slots // per_node, per_node


def make_plan(
    config: EnsembleConfig,
    rates: PlanRates,
    schedule: Schedule,
    *,
    num_nodes: int,
    slots_per_node: int,
    cores_per_rank: int | None = None,
) -> EnsemblePlan:
    """Plan the ensemble as far as its rounds are certain.

    Args:
        config: the ensemble.
        rates: rates of all its DNNs.
        schedule: the schedule, given or chosen.
        num_nodes: number of equal nodes, >= 1.
        slots_per_node: trainer slots of each node, >= 1.
        cores_per_rank: cores to request for each rank, for the command that starts the run.
    """
    cluster = Cluster.uniform(num_nodes, slots_per_node)
    # The scheduler's rank exists only on the first node; on other nodes that rank preprocesses too.
    ranks_per_node = num_ranks_needed(slots_per_node, config.slots.preprocessors_per_node)
    max_preprocessors = ranks_per_node * num_nodes - 1 - cluster.num_slots
    settings = settings_of(config, num_positions=1).under(schedule)
    flotillas = foreseen_flotillas(specs_of(config), cluster, settings, rates.table)
    planned = tuple(
        PlannedFlotilla(f, assign_slots(f, cluster), _preprocessors(f, rates, max_preprocessors))
        for f in flotillas
    )
    return EnsemblePlan(
        name=config.name,
        schedule=schedule,
        num_dnns=len(config.dnns),
        cluster=cluster,
        ranks_per_node=ranks_per_node,
        max_preprocessors=max_preprocessors,
        rates=rates,
        flotillas=planned,
        device="cpu" if config.backend.is_emulated else config.slots.device,
        gpus_per_node=-(-slots_per_node // config.slots.per_gpu),
        cores_per_rank=cores_per_rank,
    )


def _preprocessors(flotilla: Flotilla, rates: PlanRates, available: int) -> int:
    """Number of preprocessors, decided as in the run: all of them while the rate of one is not measured."""
    if rates.preprocessing_samples_per_s is None:
        return available
    return num_preprocessors(max(flotilla.rates), rates.preprocessing_samples_per_s, available)


def launch_lines(plan: EnsemblePlan, command: Sequence[str]) -> dict[str, str]:
    """Commands that start the run with the planned ranks; any one of them will do.

    Returns:
        Command by launcher: `mpirun`, `srun`, and `srun on GPUs` where slots may be GPUs.
    """
    ranks = RanksToStart(len(plan.cluster.nodes), plan.ranks_per_node, plan.cores_per_rank)
    words = {"mpirun": ranks.mpirun()}
    if plan.device != "gpu":
        words["srun"] = ranks.srun()
    if plan.device != "cpu":
        words["srun on GPUs"] = replace(ranks, gpus_per_node=str(plan.gpus_per_node)).srun()
    return {launcher: shlex.join([*line, *command]) for launcher, line in words.items()}


def plan_to_dict(plan: EnsemblePlan, command: Sequence[str]) -> dict[str, Any]:
    """The plan as JSON; slots are numbered through all nodes, rates are samples/s."""
    return {
        "format": FORMAT,
        "ensemble": plan.name,
        "paradigm": plan.paradigm,
        "delta": None if plan.schedule.delta is None else str(plan.schedule.delta),
        "alpha": plan.schedule.alpha,
        "rates_from": plan.rates.source,
        "preprocessing_samples_per_s": plan.rates.preprocessing_samples_per_s,
        "nodes": [{"name": node.host, "num_slots": node.num_slots} for node in plan.cluster.nodes],
        "ranks": {
            "total": plan.num_ranks,
            "per_node": plan.ranks_per_node,
            "schedulers": 1,
            "preprocessors": plan.max_preprocessors,
            "trainers": plan.cluster.num_slots,
        },
        "preprocessors_per_node": list(plan.preprocessors_per_node),
        "launch": list(launch_lines(plan, command).values()),
        "flotillas": [_flotilla_to_dict(plan, planned) for planned in plan.flotillas],
    }


def _flotilla_to_dict(plan: EnsemblePlan, planned: PlannedFlotilla) -> dict[str, Any]:
    flotilla = planned.flotilla
    rows = zip(flotilla.dnn_ids, flotilla.num_slots, flotilla.rates_before, flotilla.rates, strict=True)
    return {
        "reference_rate_samples_per_s": flotilla.reference_rate,
        "num_slots": sum(flotilla.num_slots),
        "num_preprocessors": planned.num_preprocessors,
        "placement_score": planned.placement.score,
        "slot_map": slot_map(plan, planned),
        "dnns": [
            {
                "name": name,
                "num_slots": count,
                "rate_before_samples_per_s": before,
                "rate_samples_per_s": rate,
                "slots": list(planned.placement.slots[name]),
                "slots_by_node": by_node(plan.cluster, planned.placement.slots[name]),
            }
            for name, count, before, rate in rows
        ],
    }


def by_node(cluster: Cluster, slots: Sequence[int]) -> dict[str, list[int]]:
    """Slots of one DNN by node name, numbered within each node."""
    node_of_slot = cluster.node_of_slots()
    first_slot = list(accumulate((node.num_slots for node in cluster.nodes), initial=0))
    result: dict[str, list[int]] = {}
    for slot in slots:
        node = node_of_slot[slot]
        result.setdefault(cluster.nodes[node].host, []).append(slot - first_slot[node])
    return result


def slot_map(plan: EnsemblePlan, planned: PlannedFlotilla) -> dict[str, list[str | None]]:
    """The DNN of each slot by node name; None for a free slot."""
    dnn_of_slot = {slot: name for name, slots in planned.placement.slots.items() for slot in slots}
    result: dict[str, list[str | None]] = {node.host: [] for node in plan.cluster.nodes}
    for slot, node in enumerate(plan.cluster.node_of_slots()):
        result[plan.cluster.nodes[node].host].append(dnn_of_slot.get(slot))
    return result
