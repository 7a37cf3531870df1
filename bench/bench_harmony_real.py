"""Harmony in real runs on emulated machines: 16 jobs of four apps on 8 machines ([PS] Sec. 4.4).

    python bench/bench_harmony_real.py --json out.json
    python bench/bench_harmony_real.py --keep ledgers --only isolated    # one run after the other, in pieces
    python bench/bench_harmony_real.py --keep ledgers --json out.json    # the rest, and all figures

Real ranks, messages, parameters and apps; computing and links are paced (workloads/harmony_real.py), so two
cores suffice. The jobs are run with `harmony`, with `isolated`, and with `naive` in the best and in the worst
of `--groupings` random groupings, chosen by simulated makespan. Each run is simulated as well, from sizes and
paces, the delays of `hpcbal simulate`, and what opening the jobs takes in this process; nothing is fitted to
the real run. All jobs are there at the start.

- `makespan_speedup`, `jct_speedup`: of `harmony` over `isolated` (at least 1.3 and 1.5; [PS] Fig. 4.10: 1.60
  and 2.11). `naive_best_*`, `naive_worst_*`: of `naive` ([PS] Fig. 4.12: 1.09 and 1.11 on average).
- `of_bound`: lower bound of the makespan over that of `harmony` (at least 0.8). The bound is all computing,
  or all transfers, spread over the machines without a gap. Transfers are those of jobs on as few machines as
  hold them, since more machines have more.
- `group_error_median`: of predicted group iterations with `harmony` (at most 0.05).
- `harmony_sim_error_max`: the largest |simulated / real - 1| of the makespans (at most 0.05).
- `cores_used_max`: of the host, by all ranks of a run, the largest of the runs: what is not emulated.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from support.figures import parser_of, write_figures
from support.jobs_ledger import RealRun, read_run
from support.starting import train
from workloads.harmony_real import BANDWIDTH, JOBS, NUM_MACHINES, STEPS, file_of

from hpcbal.config import JobsConfig, SharedJobConfig, load_config
from hpcbal.paramserver.api.batch import DataBlocks
from hpcbal.paramserver.store.layout import Layout
from hpcbal.paramserver.worker.loading import JobSetup, fill_first, first_data
from hpcbal.policies.grouping.memory import MemoryLimit
from hpcbal.runtime.jobs.loading import Cut, LoadedJob, first_cut, load_job
from hpcbal.runtime.jobs.needs import needs_of
from hpcbal.runtime.simulating.predicted import DELAYS_S
from hpcbal.runtime.simulating.shared_jobs import forecast_jobs
from hpcbal.simulator.coscheduling.job import SharingDelays
from hpcbal.simulator.coscheduling.record import SharingRun
from hpcbal.telemetry.ledger.file import read_ledger

RUNS = ("harmony", "isolated", "naive_best", "naive_worst")

ALLOWED = {
    "makespan_speedup": (">=", 1.3, 1.60),
    "jct_speedup": (">=", 1.5, 2.11),
    "of_bound": (">=", 0.8, None),
    "group_error_median": ("<=", 0.05, 0.05),
    "harmony_sim_error_max": ("<=", 0.05, None),
}
"""By key: what is allowed, and the paper's figure."""


@dataclass(frozen=True, slots=True)
class Case:
    """A way to share machines.

    Attributes:
        name: of the figures.
        paradigm: of the run.
        seed: of random groups.
    """

    name: str
    paradigm: str
    seed: int = 0


HARMONY, ISOLATED = Case("harmony", "harmony"), Case("isolated", "isolated")


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case, simulated and real.

    Attributes:
        cores: of the host that all ranks used, from their start to their end.
        load: load average of the host at its end, over five minutes.
    """

    simulated: SharingRun
    real: RealRun
    cores: float
    load: float

    @property
    def error(self) -> float:
        """Of the simulated makespan."""
        return abs(self.simulated.makespan_s / self.real.makespan_s - 1)


@dataclass(frozen=True, slots=True)
class Forecasts:
    """Simulates the runs.

    Attributes:
        loaded: the jobs.
        delays: that pass beside computing and links.
    """

    loaded: Mapping[str, LoadedJob]
    delays: SharingDelays

    def of(self, config: JobsConfig) -> SharingRun:
        """The run in virtual time."""
        return forecast_jobs(config, self.loaded, NUM_MACHINES, self.delays)


def opened(config: JobsConfig) -> Forecasts:
    """Open the jobs as the scheduler and their machines do, and measure what that takes here, per job."""
    loaded: dict[str, LoadedJob] = {}
    open_s = start_s = 0.0
    for job in config.jobs:
        began_s = time.perf_counter()
        loaded[job.name] = load_job(job)
        loaded_s = time.perf_counter()
        cut = first_cut(job, loaded[job.name], NUM_MACHINES)
        needs_of(loaded[job.name], job, cut, config.seed_of(job))
        opened_s = time.perf_counter()
        make_blocks(job, loaded[job.name], cut, config.seed_of(job))
        open_s += opened_s - began_s
        start_s += loaded_s - began_s + time.perf_counter() - opened_s
    costs = {"open_s": open_s / len(loaded), "start_s": start_s / len(loaded)}
    cores = len(os.sched_getaffinity(0))
    return Forecasts(loaded, SharingDelays(**(DELAYS_S | costs), host_cores=cores))


def make_blocks(config: SharedJobConfig, loaded: LoadedJob, cut: Cut, seed: int) -> None:
    """Make all blocks of a job, as its machines do at its start."""
    layout = Layout(tuple(loaded.tables.values()), cut.parameters)
    job = JobSetup(loaded.app, seed, config.mini_batch, DataBlocks(loaded.num_samples, cut.data), layout)
    for block in range(cut.data):
        first_data(job, block)
    for block in range(layout.num_blocks):
        table, num_rows = layout.shape_of(block)
        fill_first(job, block, np.empty((num_rows, table.num_columns), table.dtype))


def read_config(case: Case, folder: Path) -> JobsConfig:
    """The configuration of a case, as `hpcbal run` reads it."""
    path = folder / "forecast.yaml"
    path.write_text(json.dumps(file_of(str(folder / "out"), case.paradigm, case.seed)), encoding="utf-8")
    config = load_config(path)
    assert isinstance(config, JobsConfig)
    return config


def run_for_real(case: Case, kept: Path) -> tuple[RealRun, float, float]:
    """Start a run with all its ranks, unless its ledger is there.

    Args:
        kept: folder of all runs.

    Returns: what it took, how many cores of the host it used, and the load average of the host at its end.
    """
    folder = kept / f"{case.paradigm}-{case.seed}"
    facts = folder / "host.json"
    if facts.exists():
        found = json.loads(facts.read_text(encoding="utf-8"))
        return read_run(read_ledger(folder / "out" / "ledger.jsonl"), STEPS), found["cores"], found["load"]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    ledger = train(file_of(str(folder / "out"), case.paradigm, case.seed), folder)
    seconds, after = time.monotonic() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    cores, load = used_s / seconds, os.getloadavg()[1]
    facts.write_text(json.dumps({"cores": cores, "load": load}), encoding="utf-8")
    return read_run(ledger, STEPS), cores, load


def naive_cases(count: int, loaded: Mapping[str, LoadedJob], folder: Path) -> list[Case]:
    """The best and the worst of so many random groupings, simulated on any host alike."""
    forecasts = Forecasts(loaded, SharingDelays(**DELAYS_S))
    made = {
        seed: forecasts.of(read_config(Case("naive", "naive", seed), folder)).makespan_s
        for seed in range(count)
    }
    order = sorted(made, key=lambda seed: made[seed])
    return [Case("naive_best", "naive", order[0]), Case("naive_worst", "naive", order[-1])]


def bound_s(loaded: Mapping[str, LoadedJob], config: JobsConfig) -> tuple[float, float]:
    """All computing, and all transfers, spread over the machines without a gap, in seconds."""
    from hpcbal.runtime.simulating.shared_jobs import simulated_job

    limit = MemoryLimit(config.memory_per_node)
    computing = transfers = 0.0
    for name, job in loaded.items():
        sizes = simulated_job(config, name, job, NUM_MACHINES)
        computing += sizes.iterations * sizes.compute_s
        least = limit.least_machines(sizes.memory, NUM_MACHINES) or NUM_MACHINES
        dense, sparse = sizes.pull_bytes(least, least)
        transfers += sizes.iterations * least * 2 * (dense + sparse) / BANDWIDTH
    return computing / NUM_MACHINES, transfers / NUM_MACHINES


def figures(outcomes: Mapping[str, Outcome], bounds: tuple[float, float]) -> dict[str, float]:
    """All figures, by key."""
    base, ours = outcomes["isolated"].real, outcomes["harmony"].real
    errors = [group.error for group in ours.groups]
    found = {
        "makespan_speedup": base.makespan_s / ours.makespan_s,
        "jct_speedup": base.mean_completion_s / ours.mean_completion_s,
        "of_bound": max(bounds) / ours.makespan_s,
        "group_error_median": statistics.median(errors),
        "group_error_max": max(errors),
        "num_groups": len(errors),
        "harmony_sim_error_max": max(outcome.error for outcome in outcomes.values()),
        "bound_computing_s": bounds[0],
        "bound_transfers_s": bounds[1],
        "cores_used_max": max(outcome.cores for outcome in outcomes.values()),
    }
    for name, outcome in outcomes.items():
        real, virtual = outcome.real, outcome.simulated
        if name.startswith("naive"):
            found[f"{name}_makespan_speedup"] = base.makespan_s / real.makespan_s
            found[f"{name}_jct_speedup"] = base.mean_completion_s / real.mean_completion_s
        found |= {
            f"{name}_makespan_s": real.makespan_s,
            f"{name}_simulated_makespan_s": virtual.makespan_s,
            f"{name}_jct_s": real.mean_completion_s,
            f"{name}_simulated_jct_s": virtual.mean_completion_s,
            f"{name}_sim_error": outcome.error,
            f"{name}_use_of_cores": real.cpu_use,
            f"{name}_use_of_links": real.network_use,
            f"{name}_moves": real.num_moves,
            f"{name}_cores_used": outcome.cores,
            f"{name}_load": outcome.load,
        }
    return found


def show(outcomes: Mapping[str, Outcome], found: Mapping[str, float]) -> None:
    """Print runs and figures beside what is allowed and the paper's."""
    print(
        f"{'':14s} {'makespan':>9s} {'simulated':>10s} {'mean job':>9s} {'simulated':>10s} "
        f"{'cores':>6s} {'links':>6s} {'moves':>6s}"
    )
    for name, outcome in outcomes.items():
        real, virtual = outcome.real, outcome.simulated
        print(
            f"{name:14s} {real.makespan_s:7.1f} s {virtual.makespan_s:8.1f} s "
            f"{real.mean_completion_s:7.1f} s {virtual.mean_completion_s:8.1f} s "
            f"{real.cpu_use:6.0%} {real.network_use:6.0%} {real.num_moves:6d}"
        )
    print("\ngroups of harmony, seconds of an iteration")
    for group in outcomes["harmony"].real.groups:
        print(
            f"  predicted {group.predicted_s:6.3f}  measured {group.measured_s:6.3f}  {group.error:6.1%}  "
            f"{group.num_machines} machines: {' '.join(group.jobs)}"
        )
    print(f"\n{'':24s} {'ours':>6s} {'allowed':>8s} {'paper':>6s}")
    for key, (sign, allowed, paper) in ALLOWED.items():
        print(f"{key:24s} {found[key]:6.3f} {sign} {allowed:5.2f} {'' if paper is None else f'{paper:6.2f}'}")
    limit = "computing" if found["bound_computing_s"] >= found["bound_transfers_s"] else "transfers"
    bound = max(found["bound_computing_s"], found["bound_transfers_s"])
    print(f"lower bound of the makespan: {limit}, {bound:.1f} s")
    loads = ", ".join(f"{outcome.load:.1f}" for outcome in outcomes.values())
    print(f"cores of the host used by a run: at most {found['cores_used_max']:.2f}; load averages: {loads}")


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument(
        "--groupings", type=int, default=16, metavar="N", help="random ones that are simulated"
    )
    parser.add_argument("--only", nargs="+", metavar="RUN", choices=RUNS, help=f"of {', '.join(RUNS)}")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep ledgers there; do no run again whose ledger is there"
    )
    args = parser.parse_args(argv)
    if args.only and not args.keep:
        parser.error("--only needs --keep: figures compare all runs")
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bench_harmony_real_") as scratch:
        folder = Path(scratch)
        config = read_config(HARMONY, folder)
        forecasts = opened(config)
        wanted = args.only or RUNS
        cases = [HARMONY, ISOLATED]
        if any(name.startswith("naive") for name in wanted):
            cases += naive_cases(args.groupings, forecasts.loaded, folder)
        cases = [case for case in cases if case.name in wanted]
        virtual = {case.name: forecasts.of(read_config(case, folder)) for case in cases}
        bounds = bound_s(forecasts.loaded, config)
        outcomes: dict[str, Outcome] = {}
        for case in cases:
            print(f"{case.name}: {virtual[case.name].makespan_s:.0f} s expected", file=sys.stderr, flush=True)
            outcome = Outcome(virtual[case.name], *run_for_real(case, args.keep or folder))
            print(f"{case.name}: {outcome.real.makespan_s:.1f} s", file=sys.stderr, flush=True)
            outcomes[case.name] = outcome
    if args.only:
        return
    found = figures(outcomes, bounds)
    show(outcomes, found)
    costs = {"open_s": forecasts.delays.open_s, "start_s": forecasts.delays.start_s}
    write_figures(args.json, {"load_before": load_before, "num_jobs": len(JOBS), **costs, **found})


if __name__ == "__main__":
    main()
