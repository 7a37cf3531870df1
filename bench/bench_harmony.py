"""Harmony on the paper's workload, simulated: 80 jobs on 100 machines ([PS] Sec. 4.4).

    python bench/bench_harmony.py --json out.json

Every figure is a speed-up over the same jobs in isolation, of the mean job completion time (JCT) and of the
makespan. workloads/harmony_jobs.py says how the sizes of [PS] Table 4.1 were turned into times. Subtasks,
queues, moves and the scheduler's decisions are simulated one by one; [PS] Eq. 4.1 has no part in it.

- `sim_jct_speedup`, `sim_makespan_speedup`: Harmony with all its parts ([PS] Fig. 4.10: 2.11 and 1.60).
- `orders_*`, `orders_least_*`: the same, mean and least of five orders in which the jobs are submitted.
- `naive_*`, `subtasks_*`, `grouping_*`: the parts one after the other ([PS] Fig. 4.12): random groups that do
  not take turns (the best, the mean and the worst of several), the best of them with turns, and groups that
  are chosen but keep all samples in memory.
- `computing_*`, `communicating_*`: the 60 jobs that compute most, or least ([PS] Fig. 4.13).
- `poisson_*`, `bursts_*`: jobs that arrive one after the other, by minutes between them ([PS] Fig. 4.15).
- `kept_with_error_*`: share of the makespan's speed-up that is left if the scheduler believes all times to be
  longer or shorter, by up to so many per cent ([PS] Fig. 4.16a: 0.9 for 7.5 %).
- `regroup_share`: share of all machines' time that moves cost (at most 0.02).
- `sim_group_error_median`, `_max`: of predicted group iterations ([PS] Fig. 4.16b: below 0.05).
"""

from __future__ import annotations

import multiprocessing
import os
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from support.figures import parser_of, write_figures
from workloads.harmony_jobs import (
    DELAYS,
    GROUPED_LIMIT,
    ISOLATED_LIMIT,
    MACHINE,
    NUM_MACHINES,
    bursty_jobs,
    heavy_jobs,
    paper_jobs,
    poisson_jobs,
    reloaded,
)

from hpcbal.paramserver.coscheduling.fixed import Isolated, RandomGroups
from hpcbal.paramserver.coscheduling.harmony import Harmony
from hpcbal.paramserver.coscheduling.scheduler import GroupingPolicy
from hpcbal.policies.grouping.groups import JobLoad
from hpcbal.simulator.coscheduling.job import NAIVE, SimulatedJob, Turns
from hpcbal.simulator.coscheduling.record import SharingRun
from hpcbal.simulator.coscheduling.run import simulate_sharing

NAIVE_SEEDS = range(8)
MINUTES = (2, 4, 8)
BURST_SEEDS = range(3)
ERRORS = (5.0, 7.5, 10.0, 20.0)
ERROR_SEEDS = range(2)
ORDERS = range(1, 5)
"""Other orders in which the same jobs are submitted."""

Kind = Literal["isolated", "naive", "subtasks", "grouping", "harmony"]


@dataclass(frozen=True, slots=True)
class Case:
    """One simulation.

    Attributes:
        kind: how jobs share machines.
        jobs: `all`, `computing`, `communicating`, `poisson` or `bursts`.
        seed: of random groups, arrivals or errors.
        minutes: between arrivals, on average.
        error: of what the scheduler believes, as a share.
        order: of submission; 0: that of the workload.
    """

    kind: Kind
    jobs: str = "all"
    seed: int = 0
    minutes: int = 0
    error: float = 0.0
    order: int = 0


def jobs_of(case: Case) -> list[SimulatedJob]:
    """The jobs of a case."""
    jobs = paper_jobs()
    if case.order:
        random.Random(case.order).shuffle(jobs)
    match case.jobs:
        case "computing" | "communicating":
            return heavy_jobs(jobs, computes=case.jobs == "computing")
        case "poisson":
            return poisson_jobs(jobs, 60.0 * case.minutes, case.seed)
        case "bursts":
            return bursty_jobs(jobs, 60.0 * case.minutes, case.seed)
    return jobs


def simulate(case: Case) -> SharingRun:
    """Run a case."""
    jobs = jobs_of(case)
    turns = NAIVE if case.kind == "naive" else Turns()
    if case.kind == "harmony":
        jobs = reloaded(jobs)
    policy: GroupingPolicy
    match case.kind:
        case "isolated":
            policy = Isolated(ISOLATED_LIMIT, len(jobs))
        case "naive" | "subtasks":
            policy = RandomGroups(case.seed, GROUPED_LIMIT)
        case "grouping" | "harmony":
            policy = Harmony(limit=GROUPED_LIMIT)
    distort = distorted(case) if case.error else None
    return simulate_sharing(
        jobs, [MACHINE] * NUM_MACHINES, policy, turns=turns, delays=DELAYS, distort=distort
    )


def distorted(case: Case) -> Callable[[JobLoad], JobLoad]:
    """Times of each job as the scheduler believes them to be: wrong by a fixed share."""

    def distort(load: JobLoad) -> JobLoad:
        rng = random.Random(f"{case.seed} {load.name}")
        compute, network = (1 + rng.uniform(-case.error, case.error) for _ in range(2))
        return replace(load, compute_s=load.compute_s * compute, network_s=load.network_s * network)

    return distort


def all_cases() -> list[Case]:
    """Every simulation of this bench."""
    kinds: tuple[Kind, ...] = ("isolated", "harmony")
    arrivals = [Case("isolated", "poisson", 0, minutes) for minutes in MINUTES]
    arrivals += [Case("isolated", "bursts", seed, MINUTES[1]) for seed in BURST_SEEDS]
    return [
        *(Case(kind) for kind in ("isolated", "grouping", "harmony")),
        *(Case("naive", seed=seed) for seed in NAIVE_SEEDS),
        *(Case("subtasks", seed=seed) for seed in NAIVE_SEEDS),
        *(Case(kind, heavy) for heavy in ("computing", "communicating") for kind in kinds),
        *(replace(case, kind=kind) for case in arrivals for kind in kinds),
        *(Case(kind, order=order) for order in ORDERS for kind in kinds),
        *(Case("harmony", seed=seed, error=error / 100) for error in ERRORS for seed in ERROR_SEEDS),
    ]


Runs = dict[Case, SharingRun]


def speedups(runs: Runs, case: Case) -> tuple[float, float]:
    """Of mean job completion time and makespan, over the same jobs in isolation."""
    seed = case.seed if case.jobs == "bursts" else 0
    base, run = runs[Case("isolated", case.jobs, seed, case.minutes, order=case.order)], runs[case]
    return base.mean_completion_s / run.mean_completion_s, base.makespan_s / run.makespan_s


def mean_of(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The means of both."""
    return statistics.mean(pair[0] for pair in pairs), statistics.mean(pair[1] for pair in pairs)


def figures(runs: Runs) -> dict[str, float]:
    """All figures, by key."""
    found: dict[str, float] = {}

    def note(name: str, pair: tuple[float, float]) -> None:
        found[f"{name}_jct_speedup"], found[f"{name}_makespan_speedup"] = pair

    note("sim", speedups(runs, Case("harmony")))
    orders = [Case("harmony", order=order) for order in (0, *ORDERS)]
    in_orders = [speedups(runs, case) for case in orders]
    note("orders", mean_of(in_orders))
    note("orders_least", (min(pair[0] for pair in in_orders), min(pair[1] for pair in in_orders)))
    naive = {seed: speedups(runs, Case("naive", seed=seed)) for seed in NAIVE_SEEDS}
    best = max(naive, key=lambda seed: naive[seed][1])
    note("naive_best", naive[best])
    note("naive_mean", mean_of(list(naive.values())))
    note("naive_worst", min(naive.values(), key=lambda pair: pair[1]))
    note("subtasks", speedups(runs, Case("subtasks", seed=best)))
    note("grouping", speedups(runs, Case("grouping")))
    for heavy in ("computing", "communicating"):
        note(heavy, speedups(runs, Case("harmony", heavy)))
    for minutes in MINUTES:
        note(f"poisson_{minutes}", speedups(runs, Case("harmony", "poisson", 0, minutes)))
    bursts = [speedups(runs, Case("harmony", "bursts", seed, MINUTES[1])) for seed in BURST_SEEDS]
    note("bursts", mean_of(bursts))
    for error in ERRORS:
        with_error = [
            speedups(runs, Case("harmony", seed=seed, error=error / 100))[1] for seed in ERROR_SEEDS
        ]
        found[f"kept_with_error_{error:g}"] = statistics.mean(with_error) / found["sim_makespan_speedup"]
    run, isolated = runs[Case("harmony")], runs[Case("isolated")]
    found |= {
        "regroup_share": run.moving_share,
        "orders_regroup_share": statistics.mean(runs[case].moving_share for case in orders),
        "sim_group_error_median": statistics.median(run.group_errors),
        "sim_group_error_max": max(run.group_errors),
        "use_of_cores": run.cpu_use,
        "use_of_links": run.network_use,
        "isolated_use_of_cores": isolated.cpu_use,
        "isolated_use_of_links": isolated.network_use,
        "jobs_at_a_time": run.mean_jobs,
    }
    return found


PAPER = {
    "sim": (2.11, 1.60),
    "orders": (2.11, 1.60),
    "naive_mean": (1.11, 1.09),
    "subtasks": (1.27, 1.15),
    "grouping": (1.72, 1.35),
    "computing": (2.31, 1.58),
    "communicating": (1.83, 1.57),
    "bursts": (2.02, 1.57),
}
PAPER_VALUES = {
    "kept_with_error_7.5": 0.9,
    "regroup_share": 0.02,
    "orders_regroup_share": 0.02,
    "sim_group_error_max": 0.05,
    "use_of_cores": 0.932,
    "use_of_links": 0.831,
    "jobs_at_a_time": 27.2,
}


def table(found: dict[str, float]) -> list[str]:
    """The figures beside those of the paper."""
    lines = [f"{'':24s} {'JCT':>6s} {'paper':>6s} {'makespan':>9s} {'paper':>6s}"]
    for key, jct in found.items():
        name = key.removesuffix("_jct_speedup")
        if name == key:
            continue
        paper = [f"{value:.2f}" for value in PAPER[name]] if name in PAPER else ["", ""]
        makespan = found[f"{name}_makespan_speedup"]
        lines.append(f"{name:24s} {jct:6.2f} {paper[0]:>6s} {makespan:9.2f} {paper[1]:>6s}")
    lines += ["", f"{'':24s} {'ours':>6s} {'paper':>6s}"]
    for key, value in found.items():
        if not key.endswith("_speedup"):
            paper_value = f"{PAPER_VALUES[key]:.3g}" if key in PAPER_VALUES else ""
            lines.append(f"{key:24s} {value:6.3f} {paper_value:>6s}")
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    args = parser.parse_args(argv)
    load_before = os.getloadavg()[0]
    cases = sorted(all_cases(), key=lambda case: case.kind != "harmony")  # the longest first
    with multiprocessing.Pool(len(os.sched_getaffinity(0))) as pool:
        found = figures(dict(zip(cases, pool.map(simulate, cases, chunksize=1), strict=True)))
    print("\n".join(table(found)))
    write_figures(args.json, {"load_before": load_before} | found)


if __name__ == "__main__":
    main()
