"""Balance emulated slots of four unlike kinds: how many steps of a run `fitted` and Alg. 2 need to settle.

The curves have the shape of [LBBSP] Fig. 4, and for four GPUs the best split of its Fig. 8, (89, 21, 12, 6).
Measured times have Gaussian noise. A split is judged without noise: by the makespan of the true curves over
the smallest makespan of any split of whole samples (the limit: 1). After 400 steps a worker loses bandwidth.

Steps are those of a real run, made by its splitting machine (`hpcbal.control.splitting`): the policy does
not see the first one. `fitted` decides on each step before the next until it has settled. Afterwards it
decides in the background, as `lb-bsp-gpu` always does: what it sees in one step acts three steps later.

    python bench/bench_lbbsp_gpu.py --num-slots 4 16 --seeds 100 --json out.json

The JSON holds one flat object with medians over the seeds, `<policy>_<size>_<figure>`, null if a policy does
not settle. `settle` counts the steps until a policy is within 1.05 of the optimum and stays so until the
change; `resettle` counts from the change; `mean` is of the steps before the change, over the optimum, without
the first ten. `fitted_settle` and `fitted_resettle` are the worst values over all sizes (at most 6).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from support.figures import parser_of, write_figures

from hpcbal.policies.batching import BATCHING, BatchTask
from hpcbal.policies.batching.min_max import split_min_max
from hpcbal.policies.batching.time_curves import TimeCurves
from hpcbal.simulator.step_pace import VirtualGroup

FloatArray = npt.NDArray[np.float64]

# (floor, launch, seconds per sample) of a V100, M60, K80 and K520 training Inception-V3, communication over
# 10 Gbit/s included: read off [LBBSP] Fig. 4 and 8, where 26 samples less save the K520 2 s, and 57 more cost
# the V100 0.5 s.
KINDS = ((0.30, 0.23, 0.0088), (0.45, 0.37, 0.030), (0.50, 0.46, 0.045), (0.55, 0.54, 0.077))
SAMPLES_PER_SLOT = 32  # [LBBSP] Sec. 5.1
CHANGED_WORKER = 1  # the first M60
# 24 million weights, there and back, over 2.5 instead of 10 Gbit/s.
LOST_BANDWIDTH_S = 0.45
SETTLED, STEPS_ALLOWED = 1.05, 6
AFTER_SETTLING = 10  # steps; the mean counts from here on
# Alg. 2 moves samples of one pair at a time and waits 20 iterations in between: 16 slots need many steps.
CHANGE_AT, NUM_STEPS = 400, 550


@dataclass(frozen=True)
class Scenario:
    """Curves before and after a change, the time of the change, and noise."""

    before: TimeCurves
    after: TimeCurves
    task: BatchTask
    change_at: int
    num_steps: int
    noise: float


def four_kinds(num_slots: int, change_at: int, num_steps: int, noise: float) -> Scenario:
    """Slots of the four kinds in turn; one M60 loses bandwidth."""
    before = TimeCurves.of([KINDS[i % len(KINDS)] for i in range(num_slots)])
    lost = np.zeros(num_slots)
    lost[CHANGED_WORKER] = LOST_BANDWIDTH_S
    after = TimeCurves(before.floor_s + lost, before.launch_s + lost, before.slope_s)
    task = BatchTask.uniform(SAMPLES_PER_SLOT * num_slots, num_slots)
    return Scenario(before, after, task, change_at, num_steps, noise)


def run(policy: str, scenario: Scenario, seed: int) -> FloatArray:
    """Each step's makespan over the least one, shape (num_steps,).

    Every decision is ready when the next step ends: emulated steps take 0.4 s or more.
    """
    rng = np.random.default_rng((seed, 1))
    group = VirtualGroup(BATCHING[policy], scenario.task, is_noisy=True)
    ratios = np.empty(scenario.num_steps)
    best_s = [
        curves.makespan(split_min_max(curves, scenario.task)) for curves in (scenario.before, scenario.after)
    ]
    taken = iter(range(scenario.num_steps))

    def seconds_of(shares: tuple[int, ...], training: bool) -> list[float]:
        k = next(taken)
        changed = k >= scenario.change_at
        true_s = (scenario.after if changed else scenario.before).seconds(shares)
        ratios[k] = true_s.max() / best_s[changed]
        noise = 1.0 + scenario.noise * rng.standard_normal(true_s.size)
        times_s: list[float] = (true_s * np.maximum(noise, 0.5)).tolist()
        return times_s

    for _ in group.steps([(scenario.task.num_samples, True)] * scenario.num_steps, seconds_of):
        pass
    return ratios


def settled(ratios: FloatArray) -> float:
    """Steps before all later ones stay within `SETTLED`; infinite if the last one does not."""
    beyond = np.flatnonzero(ratios > SETTLED)
    after = beyond[-1] + 1 if beyond.size else 0
    return float(after) if after < ratios.size else float("inf")


def measure(policy: str, scenario: Scenario, num_seeds: int) -> dict[str, float]:
    """Medians over the seeds."""
    rows = []
    for seed in range(num_seeds):
        before, after = np.split(run(policy, scenario, seed), [scenario.change_at])
        rows.append((settled(before), settled(after), float(before[AFTER_SETTLING:].mean())))
    medians = np.median(rows, axis=0).tolist()
    return dict(zip(("settle", "resettle", "mean"), medians, strict=True))


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--num-slots", type=int, nargs="+", default=[4, 16], metavar="N")
    parser.add_argument("--seeds", type=int, default=25, help="runs per size and policy")
    parser.add_argument("--noise", type=float, default=0.03, help="relative standard deviation of times")
    args = parser.parse_args(argv)
    print(f"{'slots':>5}  {'policy':<11}{'settle':>8}{'resettle':>10}{'mean':>8}   medians of steps")
    results: dict[str, float] = {}
    for num_slots in args.num_slots:
        scenario = four_kinds(num_slots, CHANGE_AT, NUM_STEPS, args.noise)
        for policy in ("even", "lb-bsp-gpu", "fitted"):
            row = measure(policy, scenario, args.seeds)
            print(
                f"{num_slots:>5}  {policy:<11}{row['settle']:8.0f}{row['resettle']:10.0f}{row['mean']:8.3f}",
                flush=True,
            )
            results |= {f"{policy}_{num_slots}_{key}": value for key, value in row.items()}
    for key in ("settle", "resettle"):
        results[f"fitted_{key}"] = max(results[f"fitted_{num_slots}_{key}"] for num_slots in args.num_slots)
        print(f"fitted_{key} {results[f'fitted_{key}']:.4g} (at most {STEPS_ALLOWED})")
    finite = {key: value if math.isfinite(value) else None for key, value in results.items()}
    write_figures(args.json, finite)


if __name__ == "__main__":
    main()
