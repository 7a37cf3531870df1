"""Balance emulated GPUs of four unlike kinds: iteration times of every policy over the exact optimum.

The curves have the shape of [LBBSP] Fig. 4, and for four GPUs the best split of its Fig. 8, (89, 21, 12, 6).
Measured times have Gaussian noise. A split is judged without noise: by the makespan of the true curves over
the smallest makespan of any split of whole samples (the limit: 1). At one iteration a worker loses bandwidth.

`settle` counts the iterations until a policy is within 1.05 of the optimum and stays so until the change or
the end; `first` counts those until it is there for the first time; `resettle` and `refirst` count from the
change. An iteration is one decision of the policy. With `lag 1`, decisions are made in the background and see
an iteration only after the next one has ended. The `run` rows count steps of a real run instead, made by its
splitting machine (`hpcbal.control.splitting`): the policy does not see the first step. `fitted` decides on
each step before the next until it has settled. Afterwards it decides in the background, as `lb-bsp-gpu`
always does: what it sees in one step acts three steps later. In these rows the change comes after 400 steps,
because Alg. 2 needs more than 150 on 16 GPUs.

    python bench/bench_lbbsp_gpu.py --num-gpus 4 16 --seeds 100 --json out.json

The JSON holds one flat object with medians over the seeds: `<policy>_<size>_<figure>`, null if a policy does
not settle, and `<policy>_<size>_run_<figure>` for the `run` rows. `fitted_settle`, `fitted_mean`,
`fitted_resettle`, `fitted_run_settle` and `fitted_run_resettle` are the worst values over all sizes.
`alg2_final` is where Alg. 2 ends without a change, in the last 50 of 400 iterations: 4 GPUs are within 1.02
after 100, but 16 are at 1.031 from 150 to 300, because it moves samples of one pair at a time.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from support.provenance import provenance

from hpcbal.policies.batching import BATCHING, BatchingPolicy, BatchTask, Decision, Observation
from hpcbal.policies.batching.min_max import split_min_max
from hpcbal.policies.batching.time_curves import TimeCurves
from hpcbal.simulator.virtual_group import VirtualGroup

FloatArray = npt.NDArray[np.float64]

# (floor, launch, seconds per sample) of a V100, M60, K80 and K520 training Inception-V3, communication over
# 10 Gbit/s included: read off [LBBSP] Fig. 4 and 8, where 26 samples less save the K520 2 s, and 57 more cost
# the V100 0.5 s.
KINDS = ((0.30, 0.23, 0.0088), (0.45, 0.37, 0.030), (0.50, 0.46, 0.045), (0.55, 0.54, 0.077))
SAMPLES_PER_GPU = 32  # [LBBSP] Sec. 5.1
CHANGED_WORKER = 1  # the first M60
# 24 million weights, there and back, over 2.5 instead of 10 Gbit/s.
LOST_BANDWIDTH_S = 0.45
SETTLED = 1.05
AFTER_SETTLING = 10  # iterations; the mean counts from here on
FINAL_ITERATIONS = 50
# Alg. 2 moves one pair at a time and waits 20 iterations in between, so it needs this many on 16 GPUs.
ALG2_ITERATIONS = 400


@dataclass(frozen=True)
class Scenario:
    """Curves before and after a change, the time of the change, noise, and the lag of decisions."""

    before: TimeCurves
    after: TimeCurves
    task: BatchTask
    change_at: int
    num_iterations: int
    noise: float
    lag: int = 0
    in_steps: bool = False


def four_kinds(num_gpus: int, change_at: int, num_iterations: int, noise: float) -> Scenario:
    """GPUs of the four kinds in turn; one M60 loses bandwidth."""
    rows = [KINDS[i % len(KINDS)] for i in range(num_gpus)]
    before = TimeCurves.of(rows)
    lost = np.zeros(num_gpus)
    lost[CHANGED_WORKER] = LOST_BANDWIDTH_S
    after = TimeCurves(before.floor_s + lost, before.launch_s + lost, before.slope_s)
    task = BatchTask.uniform(SAMPLES_PER_GPU * num_gpus, num_gpus)
    return Scenario(before, after, task, change_at, num_iterations, noise)


def random_group(seed: int, change_at: int, num_iterations: int, noise: float) -> Scenario:
    """2 to 24 GPUs whose speeds span a factor of 10; some are not saturated; one slows down or speeds up."""
    rng = np.random.default_rng((seed, 7))
    num_gpus = int(rng.integers(2, 25))
    slope = 0.01 * 10 ** rng.uniform(0, 1, num_gpus)
    launch = slope * rng.uniform(0, 10, num_gpus)
    floor = launch + slope * rng.uniform(0, 30, num_gpus)
    floor = np.where(rng.random(num_gpus) < 0.5, floor, 0.0)
    before = TimeCurves(floor, launch, slope)
    factor = np.ones(num_gpus)
    factor[np.argmin(slope)] = rng.choice([0.5, 1.5, 2.0])  # the fastest: it has most of the samples
    after = TimeCurves(floor * factor, launch * factor, slope * factor)
    task = BatchTask.uniform(int(rng.integers(16, 129)) * num_gpus, num_gpus)
    return Scenario(before, after, task, change_at, num_iterations, noise)


def run(policy: str, scenario: Scenario, seed: int) -> tuple[FloatArray, float]:
    """Each iteration's makespan over the least one, shape (num_iterations,), and seconds per decision.

    With a lag, a decision sees an iteration that many iterations later.
    """
    if scenario.in_steps:
        return run_in_steps(policy, scenario, seed)
    rng = np.random.default_rng((seed, 1))
    chosen = BATCHING[policy]
    state = chosen.start(scenario.task)
    waiting: list[list[Observation]] = []
    ratios, spent_s = np.empty(scenario.num_iterations), 0.0
    best_s = [
        curves.makespan(split_min_max(curves, scenario.task)) for curves in (scenario.before, scenario.after)
    ]
    for k in range(scenario.num_iterations):
        changed = k >= scenario.change_at
        true_s = (scenario.after if changed else scenario.before).seconds(state.batch_sizes)
        ratios[k] = true_s.max() / best_s[changed]
        noise = 1.0 + scenario.noise * rng.standard_normal(true_s.size)
        times_s = (true_s * np.maximum(noise, 0.5)).tolist()
        seen = [Observation(size, time_s) for size, time_s in zip(state.batch_sizes, times_s, strict=True)]
        waiting.append(seen)
        if len(waiting) <= scenario.lag:
            continue
        start = time.perf_counter()
        state = chosen.decide(state, waiting.pop(0)).state
        spent_s += time.perf_counter() - start
    return ratios, spent_s / scenario.num_iterations


def run_in_steps(policy: str, scenario: Scenario, seed: int) -> tuple[FloatArray, float]:
    """Like `run`, but each iteration is a training step of a real run, with its splitting machine.

    Every decision is ready when the next step ends: emulated steps take 0.4 s or more.
    """
    rng = np.random.default_rng((seed, 1))
    chosen = Clocked(BATCHING[policy])
    group = VirtualGroup(chosen, scenario.task, is_noisy=True)
    ratios = np.empty(scenario.num_iterations)
    best_s = [
        curves.makespan(split_min_max(curves, scenario.task)) for curves in (scenario.before, scenario.after)
    ]
    taken = iter(range(scenario.num_iterations))

    def seconds_of(shares: tuple[int, ...], training: bool) -> list[float]:
        k = next(taken)
        changed = k >= scenario.change_at
        true_s = (scenario.after if changed else scenario.before).seconds(shares)
        ratios[k] = true_s.max() / best_s[changed]
        noise = 1.0 + scenario.noise * rng.standard_normal(true_s.size)
        times_s: list[float] = (true_s * np.maximum(noise, 0.5)).tolist()
        return times_s

    for _ in group.steps([(scenario.task.num_samples, True)] * scenario.num_iterations, seconds_of):
        pass
    return ratios, chosen.spent_s / scenario.num_iterations


class Clocked(BatchingPolicy[Any]):
    """A policy, and the seconds that its decisions took."""

    def __init__(self, policy: BatchingPolicy[Any]) -> None:
        self._policy = policy
        self.cadence = policy.cadence  # type: ignore[misc]
        self.learns_from_any_split = policy.learns_from_any_split  # type: ignore[misc]
        self.spent_s = 0.0

    def start(self, task: BatchTask) -> Any:
        return self._policy.start(task)

    def decide(self, state: Any, observations: Sequence[Observation]) -> Decision[Any]:
        start = time.perf_counter()
        decision = self._policy.decide(state, observations)
        self.spent_s += time.perf_counter() - start
        return decision


def first(ratios: FloatArray) -> float:
    """Iterations before the first one within `SETTLED`; infinite if there is none."""
    within = np.flatnonzero(ratios <= SETTLED)
    return float(within[0]) if within.size else float("inf")


def settled(ratios: FloatArray) -> float:
    """Iterations before all later ones stay within `SETTLED`; infinite if the last one does not."""
    beyond = np.flatnonzero(ratios > SETTLED)
    after = beyond[-1] + 1 if beyond.size else 0
    return float(after) if after < ratios.size else float("inf")


def figures(ratios: FloatArray, change_at: int) -> dict[str, float]:
    """The figures of one run."""
    before, after = ratios[:change_at], ratios[change_at:]
    return {
        "first": first(before),
        "settle": settled(before),
        "mean": float(before[AFTER_SETTLING:].mean()),
        "final": float(before[-FINAL_ITERATIONS:].mean()),
        "refirst": first(after),
        "resettle": settled(after),
        "refinal": float(after[-FINAL_ITERATIONS:].mean()),
    }


def measure(policy: str, scenarios: Sequence[Scenario]) -> dict[str, float]:
    """Medians over the scenarios, one seed each; `_p95` is the 95th percentile."""
    rows, spent_s = [], []
    for seed, scenario in enumerate(scenarios):
        ratios, decision_s = run(policy, scenario, seed)
        rows.append(figures(ratios, scenario.change_at))
        spent_s.append(decision_s)
    result = {"decision_ms": 1e3 * float(np.median(spent_s))}
    for key in rows[0]:
        values = np.sort([row[key] for row in rows])
        result[key] = float(np.median(values))
        result[f"{key}_p95"] = float(values[min(len(values) - 1, int(0.95 * len(values)))])
    return result


def show(label: str, policy: str, row: Mapping[str, float]) -> str:
    """One line of the table: medians, with 95th percentiles in brackets."""
    cells = [f"{label:>9}  {policy:<11}"]
    for key in ("first", "settle", "mean", "final", "refirst", "resettle", "refinal"):
        digits = 3 if key in ("mean", "final", "refinal") else 0
        cells.append(f"{row[key]:6.{digits}f} ({row[f'{key}_p95']:.{digits}f})".rjust(14))
    return "  ".join(cells) + f"  {row['decision_ms']:11.2f}"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-gpus", type=int, nargs="+", default=[4, 16], metavar="N")
    parser.add_argument("--seeds", type=int, default=25, help="runs per size and policy")
    parser.add_argument("--noise", type=float, default=0.03, help="relative standard deviation of times")
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--change-at", type=int, default=150, metavar="ITERATION")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    length = (args.change_at, args.iterations, args.noise)
    steps = (ALG2_ITERATIONS, ALG2_ITERATIONS + args.iterations - args.change_at, args.noise)
    columns = "".join(
        name.rjust(16) for name in ("first", "settle", "mean", "final", "refirst", "resettle", "refinal")
    )
    print(f"{'GPUs':>9}  {'policy':<11}{columns}  decision_ms   median (95 %)")
    results: dict[str, float] = {}
    for num_gpus in args.num_gpus:
        for policy in ("even", "lb-bsp-gpu", "fitted"):
            row = measure(policy, [four_kinds(num_gpus, *length)] * args.seeds)
            print(show(str(num_gpus), policy, row), flush=True)
            results |= {f"{policy}_{num_gpus}_{key}": value for key, value in row.items()}
    lagged = replace(four_kinds(args.num_gpus[0], *length), lag=1)
    for policy in ("lb-bsp-gpu", "fitted"):
        row = measure(policy, [lagged] * args.seeds)
        print(show(f"{args.num_gpus[0]}, lag 1", policy, row), flush=True)
        results |= {f"{policy}_lag1_{key}": value for key, value in row.items()}
    for num_gpus in args.num_gpus:
        in_run = replace(four_kinds(num_gpus, *steps), in_steps=True)
        for policy in ("lb-bsp-gpu", "fitted"):
            row = measure(policy, [in_run] * args.seeds)
            print(show(f"{num_gpus}, run", policy, row), flush=True)
            results |= {f"{policy}_{num_gpus}_run_{key}": value for key, value in row.items()}
    for policy in ("even", "lb-bsp-gpu", "fitted"):
        row = measure(policy, [random_group(seed, *length) for seed in range(args.seeds)])
        print(show("random", policy, row), flush=True)
        results |= {f"{policy}_random_{key}": value for key, value in row.items()}
    unchanged = [four_kinds(n, ALG2_ITERATIONS, ALG2_ITERATIONS + 1, args.noise) for n in args.num_gpus]
    results["alg2_final"] = max(measure("lb-bsp-gpu", [one] * args.seeds)["final"] for one in unchanged)
    for key in ("settle", "mean", "resettle"):
        results[f"fitted_{key}"] = max(results[f"fitted_{num_gpus}_{key}"] for num_gpus in args.num_gpus)
    for key in ("settle", "resettle"):
        sizes = args.num_gpus
        results[f"fitted_run_{key}"] = max(results[f"fitted_{num_gpus}_run_{key}"] for num_gpus in sizes)
    shown = ("settle", "mean", "resettle", "run_settle", "run_resettle")
    for key in ("alg2_final", *(f"fitted_{name}" for name in shown)):
        print(f"{key} {results[key]:.4g}")
    if args.json:
        finite = {key: value if math.isfinite(value) else None for key, value in results.items()}
        args.json.write_text(json.dumps(finite | provenance(), indent=2) + "\n")


if __name__ == "__main__":
    main()
