"""Harmony in real runs on emulated machines: 16 jobs of four apps on 8 machines ([PS] Sec. 4.4).

    python bench/bench_harmony_real.py --json out.json

Real ranks, messages, parameters and apps; computing and links are paced (workloads/harmony_real.py), so two
cores suffice. The jobs are run with `harmony`, with `isolated`, and with `naive` in the best and in the worst
of `--groupings` random groupings, chosen by simulated makespan. Each run is simulated as well, from
sizes and paces alone; nothing is fitted to the real run. All jobs are there at the start.

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

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.jobs_ledger import RealRun, read_run
from support.provenance import provenance
from support.starting import train
from workloads.harmony_real import BANDWIDTH, JOBS, NUM_MACHINES, STEPS, file_of

from hpcbal.config import JobsConfig, load_config
from hpcbal.policies.grouping import MemoryLimit
from hpcbal.runtime.paramserver.loading import LoadedJob, load_job
from hpcbal.runtime.simulating.shared_jobs import forecast_jobs
from hpcbal.simulator.sharing import SharingDelays, SharingRun

DELAYS = SharingDelays(control_s=0.001)
"""Of `hpcbal simulate`."""

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


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case, simulated and real.

    Attributes:
        cores: of the host that all ranks used, from their start to their end.
    """

    simulated: SharingRun
    real: RealRun
    cores: float

    @property
    def error(self) -> float:
        """Of the simulated makespan."""
        return abs(self.simulated.makespan_s / self.real.makespan_s - 1)


def simulated(config: JobsConfig, loaded: Mapping[str, LoadedJob]) -> SharingRun:
    """The run in virtual time."""
    return forecast_jobs(config, loaded, NUM_MACHINES, DELAYS)


def read_config(case: Case, folder: Path) -> JobsConfig:
    """The configuration of a case, as `hpcbal run` reads it."""
    path = folder / "forecast.yaml"
    path.write_text(json.dumps(file_of(str(folder / "out"), case.paradigm, case.seed)), encoding="utf-8")
    config = load_config(path)
    assert isinstance(config, JobsConfig)
    return config


def run_for_real(case: Case) -> tuple[RealRun, float]:
    """Start a run with all its ranks; returns what it took, and how many cores of the host it used."""
    with tempfile.TemporaryDirectory(prefix="bench_harmony_real_") as scratch:
        folder = Path(scratch)
        before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        ledger = train(file_of(str(folder / "out"), case.paradigm, case.seed), folder)
        seconds, after = time.monotonic() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return read_run(ledger, STEPS), used_s / seconds


def naive_cases(
    count: int, loaded: Mapping[str, LoadedJob], folder: Path
) -> tuple[Case, Case, dict[int, SharingRun]]:
    """The best and the worst of so many random groupings, and all of them simulated."""
    runs = {
        seed: simulated(read_config(Case("naive", "naive", seed), folder), loaded) for seed in range(count)
    }
    order = sorted(runs, key=lambda seed: runs[seed].makespan_s)
    return (
        Case("naive_best", "naive", order[0]),
        Case("naive_worst", "naive", order[-1]),
        runs,
    )


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
    print(f"cores of the host used by a run: at most {found['cores_used_max']:.2f}")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--groupings", type=int, default=16, metavar="N", help="random ones that are simulated"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bench_harmony_real_") as scratch:
        folder = Path(scratch)
        config = read_config(Case("harmony", "harmony"), folder)
        loaded = {job.name: load_job(job) for job in config.jobs}
        best, worst, drawn = naive_cases(args.groupings, loaded, folder)
        cases = [Case("harmony", "harmony"), Case("isolated", "isolated"), best, worst]
        virtual = {
            case.name: drawn[case.seed]
            if case.paradigm == "naive"
            else simulated(read_config(case, folder), loaded)
            for case in cases
        }
        bounds = bound_s(loaded, config)
    outcomes: dict[str, Outcome] = {}
    for case in cases:
        print(f"{case.name}: {virtual[case.name].makespan_s:.0f} s expected", file=sys.stderr, flush=True)
        real, cores = run_for_real(case)
        outcomes[case.name] = Outcome(virtual[case.name], real, cores)
    found = figures(outcomes, bounds)
    show(outcomes, found)
    if args.json:
        facts: dict[str, Any] = {"load_before": load_before, "num_jobs": len(JOBS)}
        args.json.write_text(json.dumps(facts | found | provenance(), indent=2) + "\n")


if __name__ == "__main__":
    main()
