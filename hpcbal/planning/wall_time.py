"""How long a planned ensemble takes, with which schedule, and whether that fits into the walltime."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from hpcbal.cluster.walltime import WALLTIME_MARGIN_S
from hpcbal.config import EnsembleConfig
from hpcbal.config.scheduling import settings_of, specs_of
from hpcbal.control.progress import ResumeState, ScheduleSettings
from hpcbal.control.schedules import candidates, choose
from hpcbal.events.ensemble import Schedule, ScheduleChosen, SchedulePrediction
from hpcbal.events.members import DnnSpec
from hpcbal.planning.rates import PlanRates
from hpcbal.planning.scenario import PassFacts, balancing_of, known_costs, pass_model, preprocessor_ranks
from hpcbal.policies.pruning.rules import Asha
from hpcbal.simulator.balancing import Balancing
from hpcbal.simulator.choosing import ASSUMED_COSTS, Outset, predict_schedules
from hpcbal.simulator.costs import Costs
from hpcbal.simulator.pass_model import PassModel
from hpcbal.simulator.record import SimulatedRun
from hpcbal.simulator.run import lower_bound, simulate
from hpcbal.simulator.scenario import cluster_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


ASSUMED_FACTS = PassFacts(num_train=100_000, num_validation=0, ring_samples=512)
"""Used while the size of the dataset is unknown; then only the order of the predictions has a meaning."""


def choose_for_plan(
    config: EnsembleConfig,
    rates: PlanRates,
    facts: PassFacts | None,
    *,
    num_nodes: int,
    slots_per_node: int,
) -> ScheduleChosen | None:
    """Choose as the run does before its first round; None if the configuration gives the schedule.

    Args:
        config: the ensemble.
        rates: rates of all its DNNs.
        facts: size of its dataset; None: unknown.
        num_nodes, slots_per_node: the planned allocation.
    """
    passes = pass_model(config, facts or ASSUMED_FACTS, rates.preprocessing_samples_per_s, num_nodes)
    settings = settings_of(config, passes.num_positions)
    schedules = candidates(settings)
    if len(schedules) == 1:
        return None
    outset = Outset(
        specs_of(config),
        cluster_of(num_nodes * slots_per_node, slots_per_node),
        replace(settings, max_preprocessors=preprocessor_ranks(config, num_nodes)),
        rates.table,
        passes,
        replace(ASSUMED_COSTS, start_s=rates.start_s),
        ResumeState(),
    )
    found = predict_schedules(outset, schedules, cut_beyond=math.inf)
    return choose(found, None, passes.preprocessing_samples_per_s, hit_rate=passes.hit_rate)


def schedule_for_plan(config: EnsembleConfig, choice: ScheduleChosen | None) -> Schedule:
    """The chosen schedule, or the one that the configuration gives."""
    return candidates(settings_of(config, 1))[0] if choice is None else choice.schedule


def choice_to_dict(choice: ScheduleChosen) -> list[dict[str, Any]]:
    """The candidates as plain values for JSON, the fastest first."""
    return [
        {
            "paradigm": p.schedule.paradigm,
            "delta": None if p.schedule.delta is None else str(p.schedule.delta),
            "alpha": p.schedule.alpha,
            "wall_time_s": p.remaining_s,
            "num_rounds": p.num_rounds,
            "chosen": p.schedule == choice.schedule,
        }
        for p in ranked(choice)
    ]


def ranked(choice: ScheduleChosen) -> list[SchedulePrediction]:
    """The candidates that were tried, the chosen one first, then the fastest."""
    return sorted(
        choice.predictions, key=lambda p: (p.schedule != choice.schedule, p.remaining_s, p.num_rounds)
    )


@dataclass(frozen=True, slots=True)
class Rung:
    """A rung of `asha`, as if all DNNs trained side by side.

    Attributes:
        epoch: DNNs are compared when they have trained so many epochs.
        num_dnns: DNNs that reach it.
        num_promoted: DNNs that train on; more if better ones arrive late.
    """

    epoch: int
    num_dnns: int
    num_promoted: int


def planned_rungs(config: EnsembleConfig) -> list[Rung]:
    """The rungs of the configuration; none without the rule `asha`."""
    rule = config.prune.prune_rule()
    if not isinstance(rule, Asha):
        return []
    ends = [dnn.stop.max_epochs for dnn in config.dnns if config.prune.covers(dnn.name)]
    rungs: list[Rung] = []
    promoted = len(ends)
    for epoch in rule.rungs(max(ends, default=0)):
        arriving = min(promoted, sum(end >= epoch for end in ends))
        promoted = max(1, arriving // rule.reduction)
        rungs.append(Rung(epoch, arriving, promoted))
    return rungs


def prune_lines(config: EnsembleConfig) -> list[str]:
    """The rule and its rungs, for people; nothing without a rule."""
    prune = config.prune
    num_dnns = sum(prune.covers(dnn.name) for dnn in config.dnns)
    if not num_dnns:
        return []
    if prune.rule == "median":
        first_epoch = prune.warmup_epochs
        return [f"prune median: {num_dnns} DNNs are compared after every epoch from epoch {first_epoch} on"]
    if prune.rule == "committee":
        return [
            f"prune committee: {num_dnns} DNNs are judged after every epoch from epoch {prune.min_epochs} "
            f"on, by {prune.samples} predictions at most"
        ]
    rungs = planned_rungs(config)
    if not rungs:
        return [f"prune asha: all {num_dnns} DNNs train on, because there is no rung before their last epoch"]
    words = [" DNNs train on", *[""] * len(rungs)]
    steps = [
        f"{rung.num_promoted} of {rung.num_dnns}{word} after epoch {rung.epoch}"
        for rung, word in zip(rungs, words, strict=False)
    ]
    return [f"prune asha: {', '.join(steps)}"]


def prune_to_dict(config: EnsembleConfig) -> dict[str, Any] | None:
    """The rule and its rungs as JSON; None without a rule."""
    if config.prune.prune_rule() is None:
        return None
    rungs = [
        {"epoch": rung.epoch, "num_dnns": rung.num_dnns, "num_promoted": rung.num_promoted}
        for rung in planned_rungs(config)
    ]
    return {"rule": config.prune.rule, "rungs": rungs}


MOST_NODES_TRIED = 256


@dataclass(frozen=True, slots=True)
class PlanForecast:
    """The prediction of a plan, from its simulated run.

    Attributes:
        wall_time_s: time of the whole ensemble, if every DNN trains to its max_epochs.
        num_rounds: expected rounds; 0: DNNs train without rounds.
        profiling_s: the part of the time that measures rates.
        lower_bound_s: no schedule on these slots is faster.
        busy: share of the slots' time in which they train, 0..1.
        usable_s: walltime before the clean stop; None: no walltime is configured.
        num_nodes_that_fit: fewest such nodes that finish in that time; None: no walltime, or no tried number
            is enough.
        costs: costs of starting and saving, measured by an earlier run in the output directory; None: there
            was none, so they are assumed to be zero.
    """

    wall_time_s: float
    num_rounds: int
    profiling_s: float
    lower_bound_s: float
    busy: float
    usable_s: float | None
    num_nodes_that_fit: int | None
    costs: Costs | None

    @property
    def fits(self) -> bool:
        return self.usable_s is None or self.wall_time_s <= self.usable_s

    @property
    def num_starts(self) -> int:
        """How often the same command must be started, if each start continues where the last one stopped."""
        return 1 if self.usable_s is None else max(1, math.ceil(self.wall_time_s / self.usable_s))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "fits": self.fits, "num_starts": self.num_starts}


def forecast(
    config: EnsembleConfig,
    rates: PlanRates,
    facts: PassFacts,
    schedule: Schedule,
    *,
    num_nodes: int,
    slots_per_node: int,
) -> PlanForecast:
    """Simulate the plan; if it does not fit, search for the number of nodes that does.

    A schedule that was chosen is kept to the end; the run may choose a faster one from round to round.

    Args:
        config: the ensemble.
        rates: rates of all its DNNs.
        facts: size of its dataset.
        schedule: the schedule, given or chosen.
        num_nodes, slots_per_node: the planned allocation.
    """

    passes = pass_model(config, facts, rates.preprocessing_samples_per_s, num_nodes)
    costs = known_costs(config, rates)
    specs = specs_of(config)
    settings = replace(settings_of(config, passes.num_positions).under(schedule), prune=None)
    balancing = balancing_of(config)

    def run(nodes: int) -> SimulatedRun:
        cluster = cluster_of(nodes * slots_per_node, slots_per_node)
        sized = replace(settings, max_preprocessors=preprocessor_ranks(config, nodes))
        return simulate(specs, cluster, sized, rates.table, passes, costs=costs, balancing=balancing)

    planned = run(num_nodes)
    usable_s, enough = None, None
    if config.walltime is not None:
        usable_s = config.walltime - min(WALLTIME_MARGIN_S, config.walltime / 4)
        if planned.makespan_s <= usable_s:
            enough = num_nodes
        elif (
            _best_s(specs, rates, passes, settings, MOST_NODES_TRIED * slots_per_node, balancing) <= usable_s
        ):
            enough = _least_nodes(num_nodes, lambda nodes: run(nodes).makespan_s <= usable_s)
    return PlanForecast(
        wall_time_s=planned.makespan_s,
        num_rounds=planned.num_rounds,
        profiling_s=planned.profiling_s,
        lower_bound_s=planned.lower_bound_s,
        busy=planned.busy,
        usable_s=usable_s,
        num_nodes_that_fit=enough,
        costs=costs,
    )


def _best_s(
    specs: Sequence[DnnSpec],
    rates: PlanRates,
    passes: PassModel,
    settings: ScheduleSettings,
    num_slots: int,
    balancing: Balancing | None,
) -> float:
    """The least time of any schedule on `num_slots`: avoids the search if no number of nodes is enough."""
    epochs = {spec.dnn_id: spec.stop.max_epochs for spec in specs}
    table = rates.table if balancing is None else balancing.fastest(rates.table, num_slots)
    return lower_bound(epochs, num_slots, settings.max_slots_per_dnn, table, passes)


def _least_nodes(too_few: int, fits: Callable[[int], bool]) -> int | None:
    """The least number of nodes above `too_few` that fits: double until it does, then bisect.

    More nodes are not always faster, so this number fits, but only the next smaller number tried does not.
    """
    enough = too_few
    while True:
        enough *= 2
        if enough > MOST_NODES_TRIED:
            return None
        if fits(enough):
            break
        too_few = enough
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if fits(middle) else (middle, enough)
    return enough
