"""A scenario to simulate: an ensemble that can be drawn for any seed, and the machine that trains it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hpcbal.cluster.layout import Cluster, Node
from hpcbal.control.paradigms import AUTO, INDEPENDENT, is_random
from hpcbal.control.progress import ScheduleSettings
from hpcbal.events.members import DnnSpec
from hpcbal.policies.rates import RateTable
from hpcbal.simulator.balancing import Balancing
from hpcbal.simulator.choosing import MOST_DNNS
from hpcbal.simulator.costs import Costs
from hpcbal.simulator.learning_curves import CurveLaw
from hpcbal.simulator.pass_model import PassModel
from hpcbal.simulator.record import SimulatedRun
from hpcbal.simulator.run import simulate


@dataclass(frozen=True, slots=True)
class Workload:
    """An ensemble, with everything that a real run would only discover.

    Attributes:
        specs: the DNNs.
        rates: rate of each DNN on the fewest nodes that hold its slots.
        epochs: epochs after which a DNN converges; one that is missing trains to its max_epochs, and
            decisions know that.
        known: rates that the run knows when it starts; the settings decide whether it measures the others.
            None: all.
    """

    specs: tuple[DnnSpec, ...]
    rates: RateTable
    epochs: Mapping[str, int]
    known: RateTable | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """Measured makespans of the same scenario, for comparison.

    Attributes:
        source: key in docs/references.md, with the table.
        paradigm: the measured paradigm.
        makespan_s: makespan by number of slots.
    """

    source: str
    paradigm: str
    makespan_s: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Scenario:
    """An ensemble on a kind of machine.

    Attributes:
        name: name for people.
        slots_per_node: slots of every node; the last node may have fewer.
        slots: numbers of slots to simulate by default.
        draw: draws the ensemble for a seed.
        settings: settings of the schedule; paradigm and seed are set for each run.
        passes: model of a pass.
        costs: costs of everything else.
        max_preprocessors: preprocessor ranks by number of slots.
        kept_per_added_node: share of its rate that a group keeps for each added node; see `GroupRates`.
        published: makespans measured by others; None: not published.
        balancing: unlike slots, and how steps are split over them; None: all slots are alike.
        curves: learning curves for the pruning rule of the settings, drawn for each seed.
    """

    name: str
    slots_per_node: int
    slots: tuple[int, ...]
    draw: Callable[[int], Workload]
    settings: ScheduleSettings
    passes: PassModel
    costs: Costs
    max_preprocessors: Callable[[int], int]
    kept_per_added_node: float = 1.0
    published: Published | None = None
    balancing: Balancing | None = None
    curves: CurveLaw = field(default_factory=CurveLaw)

    def runs(self, num_slots: int, paradigm: str, seeds: Sequence[int]) -> list[SimulatedRun]:
        """Simulate a run per seed; only one if no seed changes the ensemble or the schedule.

        With `auto`, a seed may change the choice, because some candidates draw DNNs at random. To simulate
        a large ensemble (more than `MOST_DNNS`) takes long, so the run of the first seed stands for all if
        it drew none.
        """
        workloads = [self.draw(seed) for seed in seeds]
        first = self._simulate(workloads[0], num_slots, paradigm, seeds[0])
        are_alike = all(workload == workloads[0] for workload in workloads)
        are_alike &= self.settings.prune is None  # each seed draws its own curves
        is_settled = paradigm != AUTO or len(workloads[0].specs) > MOST_DNNS
        if are_alike and is_settled and not any(map(is_random, first.paradigms)):
            return [first] * len(seeds)
        others = zip(workloads[1:], seeds[1:], strict=True)
        return [first, *(self._simulate(workload, num_slots, paradigm, seed) for workload, seed in others)]

    def run(self, num_slots: int, paradigm: str, seed: int) -> SimulatedRun:
        """Simulate one run; the same arguments give the same run."""
        return self._simulate(self.draw(seed), num_slots, paradigm, seed)

    def without_pruning(self) -> Scenario:
        """The same scenario, but every DNN trains to its end."""
        return replace(self, settings=replace(self.settings, prune=None))

    def _simulate(self, workload: Workload, num_slots: int, paradigm: str, seed: int) -> SimulatedRun:
        # [FLEET] Sec. 6.1: the baseline picks DNNs at random, as a run does that knows no rates.
        is_published_baseline = paradigm == INDEPENDENT and self.published is not None
        settings = replace(
            self.settings, paradigm=paradigm, seed=seed, max_preprocessors=self.max_preprocessors(num_slots)
        )
        rule = settings.prune
        needs_evidence = rule is not None and rule.needs_evidence
        return simulate(
            workload.specs,
            cluster_of(num_slots, self.slots_per_node),
            settings,
            workload.rates,
            self.passes,
            epochs=workload.epochs,
            known=RateTable({}, self.slots_per_node) if is_published_baseline else workload.known,
            costs=self.costs,
            kept_per_added_node=self.kept_per_added_node,
            balancing=self.balancing,
            curves=None if rule is None else self.curves.draw(workload.specs, seed),
            evidence=self.curves.draw_evidence(workload.specs, seed) if needs_evidence else None,
        )


def cluster_of(num_slots: int, slots_per_node: int) -> Cluster:
    """Full nodes, plus one with the remaining slots (both arguments >= 1)."""
    full, left = divmod(num_slots, slots_per_node)
    sizes = [slots_per_node] * full + [left] * (left > 0)
    return Cluster(tuple(Node(f"node{i}", size) for i, size in enumerate(sizes)))
