"""Compare schedules: every number of slots with every paradigm, averaged over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hpcbal.control.paradigms import AUTO, INDEPENDENT, PARADIGM_NAMES
from hpcbal.errors import InputError
from hpcbal.simulator.record import SimulatedRun
from hpcbal.simulator.scenario import Scenario


@dataclass(frozen=True, slots=True)
class FlotillaRow:
    """Running lengths in one round of a run ([FLEET] Table 3)."""

    index: int
    num_dnns: int
    num_slots: int
    num_passes: int
    mean_s: float
    deviation_s: float


@dataclass(frozen=True, slots=True)
class Row:
    """One number of slots with one paradigm; means over the seeds.

    Attributes:
        slots: M.
        paradigm: name as in `schedule.paradigm`.
        makespan_s: time until the last DNN is done, including everything.
        makespan_deviation_s: its deviation over the seeds.
        speedup_vs_independent: makespan of the independent schedule divided by this one, seed by seed.
        wait_s_per_slot: time that a slot had no DNN ([FLEET] Fig. 6).
        lockstep_s_per_slot: time that a slot with a DNN waited for the shared stream.
        rounds: number of flotillas; with the independent schedule one per DNN.
        running_mean_s, running_deviation_s: running lengths of the DNNs ([FLEET] Table 3).
        scheduling_s, checkpointing_s, profiling_s: overheads ([FLEET] Table 4).
        lower_bound_s: no schedule can be faster.
        over_lower_bound: makespan divided by the lower bound.
        published_s: makespan measured by others; None: not published.
        unpruned_makespan_s: makespan if no DNN is pruned; None: there is no pruning rule.
        epochs_share: epochs trained, over those without pruning.
        num_pruned: DNNs that are pruned.
        flotillas: rounds of the first seed.
    """

    slots: int
    paradigm: str
    makespan_s: float
    makespan_deviation_s: float
    speedup_vs_independent: float
    wait_s_per_slot: float
    lockstep_s_per_slot: float
    rounds: float
    running_mean_s: float
    running_deviation_s: float
    scheduling_s: float
    checkpointing_s: float
    profiling_s: float
    lower_bound_s: float
    over_lower_bound: float
    published_s: float | None
    unpruned_makespan_s: float | None
    epochs_share: float
    num_pruned: float
    flotillas: tuple[FlotillaRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """The row as plain values for JSON, with overheads also in percent and the ratio to `published_s`."""
        values = asdict(self)
        for name in ("scheduling", "checkpointing", "profiling"):
            values[f"{name}_percent"] = self.percent(values[f"{name}_s"])
        values["over_published"] = None if self.published_s is None else self.makespan_s / self.published_s
        return values

    def percent(self, seconds: float) -> float:
        """Percentage of the makespan."""
        return 100.0 * seconds / self.makespan_s if self.makespan_s else 0.0


def compare(
    scenario: Scenario, slots: Sequence[int], paradigms: Sequence[str], seeds: Sequence[int]
) -> list[Row]:
    """Simulate all combinations.

    Args:
        scenario: what to simulate.
        slots: numbers of slots, each >= 1.
        paradigms: names; the independent paradigm is always simulated, for comparison.
        seeds: at least one; a seed selects the ensemble that is drawn, and the order of random schedules.

    Returns: a row per number of slots and paradigm, in the order given.
    Raises:
        InputError: if a paradigm is unknown, or a number of slots is below 1.
    """
    unknown = [name for name in paradigms if name not in (*PARADIGM_NAMES, AUTO)]
    if unknown:
        raise InputError(
            f"paradigm: got {unknown[0]!r}, allowed: {', '.join((*PARADIGM_NAMES, AUTO))}, or all"
        )
    wrong = [number for number in slots if number < 1]
    if wrong:
        raise InputError(f"slots: got {wrong[0]}, allowed: 1 or more")
    rows = []
    for number in slots:
        baseline = scenario.runs(number, INDEPENDENT, seeds)
        for name in paradigms:
            runs = baseline if name == INDEPENDENT else scenario.runs(number, name, seeds)
            unpruned = runs
            if scenario.settings.prune is not None:
                unpruned = scenario.without_pruning().runs(number, name, seeds)
            rows.append(_row(scenario, number, name, runs, baseline, unpruned))
    return rows


def _row(
    scenario: Scenario,
    num_slots: int,
    paradigm: str,
    runs: Sequence[SimulatedRun],
    baseline: Sequence[SimulatedRun],
    unpruned: Sequence[SimulatedRun],
) -> Row:
    mean = statistics.fmean
    makespans = [run.makespan_s for run in runs]
    lengths = [run.running_lengths() for run in runs]
    published = scenario.published
    is_published = published is not None and published.paradigm == paradigm
    return Row(
        slots=num_slots,
        paradigm=paradigm,
        makespan_s=mean(makespans),
        makespan_deviation_s=statistics.pstdev(makespans),
        speedup_vs_independent=mean(
            _ratio(other.makespan_s, run.makespan_s) for other, run in zip(baseline, runs, strict=True)
        ),
        wait_s_per_slot=mean(float(run.idle_seconds().mean()) for run in runs),
        lockstep_s_per_slot=mean(float(run.slot_seconds("wait").mean()) for run in runs),
        rounds=mean(len(run.rounds) for run in runs),
        running_mean_s=mean(length for length, _ in lengths),
        running_deviation_s=mean(deviation for _, deviation in lengths),
        scheduling_s=mean(run.scheduling_s for run in runs),
        checkpointing_s=mean(run.checkpointing_s() for run in runs),
        profiling_s=mean(run.profiling_s for run in runs),
        lower_bound_s=mean(run.lower_bound_s for run in runs),
        over_lower_bound=mean(_ratio(run.makespan_s, run.lower_bound_s) for run in runs),
        published_s=published.makespan_s.get(num_slots) if published is not None and is_published else None,
        unpruned_makespan_s=None if unpruned is runs else mean(run.makespan_s for run in unpruned),
        epochs_share=mean(
            _ratio(run.num_epochs, other.num_epochs) for run, other in zip(runs, unpruned, strict=True)
        ),
        num_pruned=mean(run.num_pruned for run in runs),
        flotillas=_flotillas(runs[0]),
    )


def _ratio(a: float, b: float) -> float:
    """a / b, and 1 if both are zero (an ensemble that was already done)."""
    return a / b if b > 0.0 else (1.0 if a == 0.0 else math.inf)


def _flotillas(run: SimulatedRun) -> tuple[FlotillaRow, ...]:
    return tuple(
        FlotillaRow(
            index=record.plan.index,
            num_dnns=len(record.plan.groups),
            num_slots=sum(len(group.slots) for group in record.plan.groups),
            num_passes=record.num_passes,
            mean_s=record.mean_running_s,
            deviation_s=record.deviation_running_s,
        )
        for record in run.rounds
    )
