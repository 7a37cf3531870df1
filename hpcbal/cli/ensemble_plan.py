"""What a configuration would do on given nodes: flotillas one after the other, and the ranks to ask for."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcbal.cli.plan_rates import PlanRates
from hpcbal.cluster.layout import Cluster
from hpcbal.cluster.roles import num_ranks_needed
from hpcbal.config import RunConfig
from hpcbal.errors import InputError
from hpcbal.policies import Flotilla, Placement, assign_gpus, demand, num_preprocessors, plan_all_flotillas
from hpcbal.telemetry.table import count_text, format_table

FORMAT = 1


@dataclass(frozen=True, slots=True)
class PlannedFlotilla:
    """One flotilla, placed, with the preprocessors that feed it."""

    flotilla: Flotilla
    placement: Placement
    num_preprocessors: int


@dataclass(frozen=True, slots=True)
class EnsemblePlan:
    """All flotillas of an ensemble, if the DNNs of each converge together.

    Attributes:
        name: of the ensemble.
        cluster: nodes with their trainer slots.
        ranks_per_node: ranks to start on each node: the same number on all, as launchers like it.
        max_preprocessors: ranks of all these that preprocess.
        rates: what the plan is made from.
        flotillas: in the order of training.
    """

    name: str
    cluster: Cluster
    ranks_per_node: int
    max_preprocessors: int
    rates: PlanRates
    flotillas: tuple[PlannedFlotilla, ...]

    @property
    def num_ranks(self) -> int:
        return self.ranks_per_node * len(self.cluster.nodes)


def gpus_per_node(config: RunConfig, given: int | None) -> int:
    """Trainer slots per node: as given, else as configured.

    Raises:
        InputError: neither tells it.
    """
    if given is not None:
        return given
    if isinstance(config.slots.per_node, int):
        return config.slots.per_node
    raise InputError(
        "slots.per_node is auto, which is known only inside the allocation; say --gpus-per-node N for a plan"
    )


def make_plan(config: RunConfig, rates: PlanRates, *, num_nodes: int, gpus_per_node: int) -> EnsemblePlan:
    """Plan the ensemble to its last DNN.

    Args:
        config: the ensemble.
        rates: of all its DNNs.
        num_nodes: equal nodes, >= 1.
        gpus_per_node: trainer slots of each, >= 1.

    Source: [FLEET] Alg. 1 without line 6: all DNNs of a flotilla converge together.
    """
    cluster = Cluster.uniform(num_nodes, gpus_per_node)
    # The scheduler's rank exists on the first node only; on the others that rank preprocesses too.
    ranks_per_node = num_ranks_needed(gpus_per_node, config.slots.preprocessors_per_node)
    max_preprocessors = ranks_per_node * num_nodes - 1 - cluster.num_gpus
    flotillas = plan_all_flotillas(
        [dnn.name for dnn in config.dnns],
        rates.table,
        cluster.num_gpus,
        config.schedule.delta_rule(),
        config.schedule.max_gpus_per_dnn,
    )
    planned = tuple(
        PlannedFlotilla(f, assign_gpus(f, cluster), _preprocessors(f, rates, cluster, max_preprocessors))
        for f in flotillas
    )
    return EnsemblePlan(config.name, cluster, ranks_per_node, max_preprocessors, rates, planned)


def _preprocessors(flotilla: Flotilla, rates: PlanRates, cluster: Cluster, available: int) -> int:
    """As the run decides it: all there are while nobody has measured what one makes."""
    if rates.preprocessing_samples_per_s is None:
        return available
    needed = demand(flotilla.rates, cluster.num_gpus)
    return num_preprocessors(needed, rates.preprocessing_samples_per_s, available)


def launch_lines(plan: EnsemblePlan, command: Sequence[str]) -> list[str]:
    """Commands, any of which starts the run with the planned ranks."""
    text = shlex.join(command)
    nodes, per_node = len(plan.cluster.nodes), plan.ranks_per_node
    if nodes == 1:
        return [f"mpirun -n {per_node} {text}", f"srun --nodes=1 --ntasks={per_node} {text}"]
    return [
        f"mpirun -n {plan.num_ranks} --map-by ppr:{per_node}:node {text}",
        f"srun --nodes={nodes} --ntasks-per-node={per_node} {text}",
    ]


def plan_to_dict(plan: EnsemblePlan, command: Sequence[str]) -> dict[str, Any]:
    """The plan as JSON; GPUs count through the nodes, rates are samples/s."""
    return {
        "format": FORMAT,
        "ensemble": plan.name,
        "rates_from": plan.rates.source,
        "preprocessing_samples_per_s": plan.rates.preprocessing_samples_per_s,
        "nodes": [{"name": node.host, "num_gpus": node.num_gpus} for node in plan.cluster.nodes],
        "ranks": {
            "total": plan.num_ranks,
            "per_node": plan.ranks_per_node,
            "schedulers": 1,
            "preprocessors": plan.max_preprocessors,
            "trainers": plan.cluster.num_gpus,
        },
        "launch": launch_lines(plan, command),
        "flotillas": [_flotilla_to_dict(plan, planned) for planned in plan.flotillas],
    }


def _flotilla_to_dict(plan: EnsemblePlan, planned: PlannedFlotilla) -> dict[str, Any]:
    flotilla = planned.flotilla
    rows = zip(flotilla.dnn_ids, flotilla.num_gpus, flotilla.rates_before, flotilla.rates, strict=True)
    return {
        "reference_rate_samples_per_s": flotilla.reference_rate,
        "num_gpus": sum(flotilla.num_gpus),
        "num_preprocessors": planned.num_preprocessors,
        "placement_score": planned.placement.score,
        "dnns": [
            {
                "name": name,
                "num_gpus": count,
                "rate_before_samples_per_s": before,
                "rate_samples_per_s": rate,
                "gpus": list(planned.placement.gpus[name]),
                "gpus_by_node": _by_node(plan.cluster, planned.placement.gpus[name]),
            }
            for name, count, before, rate in rows
        ],
    }


def _by_node(cluster: Cluster, gpus: Sequence[int]) -> dict[str, list[int]]:
    """GPUs of one DNN by node name, numbered within the node."""
    node_of_gpu = cluster.node_of_gpus()
    first_gpu = [node_of_gpu.index(i) if n.num_gpus else 0 for i, n in enumerate(cluster.nodes)]
    result: dict[str, list[int]] = {}
    for gpu in gpus:
        node = node_of_gpu[gpu]
        result.setdefault(cluster.nodes[node].host, []).append(gpu - first_gpu[node])
    return result


def render_plan(plan: EnsemblePlan, command: Sequence[str]) -> list[str]:
    """The plan as text, line by line."""
    nodes = plan.cluster.nodes
    num_dnns = sum(len(planned.flotilla.dnn_ids) for planned in plan.flotillas)
    lines = [
        f"{plan.name}: {count_text(num_dnns, 'DNN')} in {count_text(len(plan.flotillas), 'flotilla')} on "
        f"{count_text(len(nodes), 'node')} with {count_text(nodes[0].num_gpus, 'GPU slot')} each",
        "",
    ]
    headers = ("flotilla", "DNN", "GPUs", "samples/s", "with extra GPUs", "placement", "preprocessors")
    rows: list[list[str]] = []
    for index, planned in enumerate(plan.flotillas, start=1):
        rows += _table_rows(plan, planned, index)
    lines += format_table(headers, rows, right=(0, 2, 3, 4, 6))
    lines += [
        "",
        f"ranks: {plan.num_ranks} = 1 scheduler + {count_text(plan.max_preprocessors, 'preprocessor')} + "
        f"{count_text(plan.cluster.num_gpus, 'trainer')} ({plan.ranks_per_node} per node)",
        "start: " + "\n   or: ".join(launch_lines(plan, command)),
    ]
    if plan.rates.preprocessing_samples_per_s is None:
        lines.append("note: preprocessing was not measured, so all preprocessors are planned for")
    return lines


def _table_rows(plan: EnsemblePlan, planned: PlannedFlotilla, index: int) -> list[list[str]]:
    flotilla = planned.flotilla
    rows: list[list[str]] = []
    members = zip(flotilla.dnn_ids, flotilla.num_gpus, flotilla.rates_before, flotilla.rates, strict=True)
    for name, count, before, rate in members:
        first = not rows
        places = _by_node(plan.cluster, planned.placement.gpus[name])
        text = " ".join(f"{node}:{_ranges(gpus)}" for node, gpus in places.items())
        extra = f"{rate:.1f}" if rate != before else "-"
        rows.append(
            [
                str(index) if first else "",
                name,
                str(count),
                f"{before:.1f}",
                extra,
                text,
                str(planned.num_preprocessors) if first else "",
            ]
        )
    return rows


def _ranges(numbers: Sequence[int]) -> str:
    """`0-3,6` for 0, 1, 2, 3, 6 (ascending)."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
