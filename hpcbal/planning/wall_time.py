"""How long a planned ensemble will take, whether that fits the walltime, and what would."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from hpcbal.cluster.walltime import WALLTIME_MARGIN_S
from hpcbal.config import EnsembleConfig
from hpcbal.config.scheduling import settings_of, specs_of
from hpcbal.control import DnnSpec, ScheduleSettings
from hpcbal.planning.rates import PlanRates
from hpcbal.planning.scenario import PassFacts, known_costs, pass_model, preprocessor_ranks
from hpcbal.simulator import Costs, PassModel, SimulatedRun, cluster_of, lower_bound, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MOST_NODES_TRIED = 256


@dataclass(frozen=True, slots=True)
class PlanForecast:
    """What the simulated run of a plan says.

    Attributes:
        wall_time_s: of the whole ensemble, if every DNN trains to its max_epochs.
        num_rounds: expected; with the independent schedule one per DNN.
        profiling_s: the part of it that measures rates.
        lower_bound_s: no schedule on these GPUs is faster.
        usable_s: of the walltime, what is left before the clean stop; None: no walltime is configured.
        num_nodes_that_fit: the least number of such nodes that does it in that time; None: no walltime, or
            none of those tried does.
        costs: of starting and saving, as an earlier run in the output directory measured them; None: there
            is none, so they are taken to cost nothing.
    """

    wall_time_s: float
    num_rounds: int
    profiling_s: float
    lower_bound_s: float
    usable_s: float | None
    num_nodes_that_fit: int | None
    costs: Costs | None

    @property
    def fits(self) -> bool:
        return self.usable_s is None or self.wall_time_s <= self.usable_s

    @property
    def num_starts(self) -> int:
        """How often the same command must be started, as it goes on where it was stopped."""
        return 1 if self.usable_s is None else max(1, math.ceil(self.wall_time_s / self.usable_s))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "fits": self.fits, "num_starts": self.num_starts}


def forecast(
    config: EnsembleConfig, rates: PlanRates, facts: PassFacts, *, num_nodes: int, gpus_per_node: int
) -> PlanForecast:
    """Simulate the plan, and if it does not fit, look for the number of nodes that would.

    Args:
        config: the ensemble.
        rates: of all its DNNs.
        facts: how large its dataset is.
        num_nodes, gpus_per_node: the planned allocation.
    """

    passes = pass_model(config, facts, rates.preprocessing_samples_per_s)
    costs = known_costs(config, rates)
    specs = specs_of(config)
    settings = settings_of(config, passes.num_positions)

    def run(nodes: int) -> SimulatedRun:
        cluster = cluster_of(nodes * gpus_per_node, gpus_per_node)
        sized = replace(settings, max_preprocessors=preprocessor_ranks(config, nodes))
        return simulate(specs, cluster, sized, rates.table, passes, costs=costs)

    planned = run(num_nodes)
    usable_s, enough = None, None
    if config.walltime is not None:
        usable_s = config.walltime - min(WALLTIME_MARGIN_S, config.walltime / 4)
        if planned.makespan_s <= usable_s:
            enough = num_nodes
        elif _best_s(specs, rates, passes, settings, MOST_NODES_TRIED * gpus_per_node) <= usable_s:
            enough = _least_nodes(num_nodes, lambda nodes: run(nodes).makespan_s <= usable_s)
    return PlanForecast(
        wall_time_s=planned.makespan_s,
        num_rounds=len(planned.rounds),
        profiling_s=planned.profiling_s,
        lower_bound_s=planned.lower_bound_s,
        usable_s=usable_s,
        num_nodes_that_fit=enough,
        costs=costs,
    )


def _best_s(
    specs: Sequence[DnnSpec],
    rates: PlanRates,
    passes: PassModel,
    settings: ScheduleSettings,
    num_gpus: int,
) -> float:
    """The least that any schedule takes on so many GPUs: spares the search where no number suffices."""
    epochs = {spec.dnn_id: spec.stop.max_epochs for spec in specs}
    return lower_bound(epochs, num_gpus, settings.max_gpus_per_dnn, rates.table, passes)


def _least_nodes(too_few: int, fits: Callable[[int], bool]) -> int | None:
    """The least number of nodes above `too_few` that fits: doubled until it does, then halved in between.

    More nodes are not always faster, so this is a number that fits, and the next one tried does not.
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
