"""Compare ways to deal samples of unequal size to workers: emulated workers in virtual time.

One table per cluster, homogeneous (8 equal workers) and heterogeneous (4 + 4 of half the speed): the time of
a pass over the least time of any method at DIF 0, for DIF 0 to 64 ([CHRONICA] Table IV, where TensorFlow pays
2.5 and CHRONICA 1.07), over a bound that no method can beat, and errors of prediction (Fig. 9, as a share of
a step). Then 2 samples per worker, and the time that a decision takes for one million samples on 1,024
workers. The emulated workers' times have 2 % noise and are learnt while training, as in a run. `boa` is the
best split by counts alone: it knows the workers' speeds, but no sizes.

    python bench/bench_chronica.py --json out.json

The JSON holds one flat object. Targets: `chronica_dif64` 1.07, `within_batch_dif64` 1.02, `lookahead_dif64`
1.15 (2 batches, 2 samples per worker), `chronica_hetero_dif64` 1.10, `within_batch_hetero_dif64` 1.04,
`epoch_setup_s` 2, `step_ms` and `chronica_step_ms` 1.
"""

from __future__ import annotations

import time

import numpy as np
from support.figures import parser_of, write_figures
from workloads.unequal import METHODS, Pass, Trial, Workers, lower_bound_s

from hpcbal.policies.folds import sample_order
from hpcbal.policies.samples.chronica import MEAN_SIZE, EpochQueues, Indicators, generated_sizes, shuffle
from hpcbal.policies.samples.task import StepCost
from hpcbal.policies.samples.within_batch import deal_by_weight, order_in_windows

DIFS = (0.0, 4.0, 8.0, 16.0, 32.0, 64.0)
CLUSTERS = {"": [1.0] * 8, "hetero_": [1.0] * 4 + [0.5] * 4}
NUM_STEPS, NUM_PASSES = 100, 3
LARGE = (1_000_000, 1024, 4)
"""Samples, workers, samples per worker in a step ([CHRONICA] Sec. VI-E has 4)."""


def timed(method: str, speeds: list[float], samples_per_worker: int, dif: float) -> Pass:
    """A pass after two others, in which parts and predictions settle."""
    sizes = generated_sizes(NUM_STEPS * samples_per_worker * len(speeds), dif, seed=0)
    trial = Trial(method, sizes, Workers.of(speeds, MEAN_SIZE), samples_per_worker)
    return [trial.run_pass(number) for number in range(NUM_PASSES)][-1]


def bound(speeds: list[float], samples_per_worker: int, dif: float) -> float:
    sizes = generated_sizes(NUM_STEPS * samples_per_worker * len(speeds), dif, seed=0)
    return lower_bound_s(sizes, Workers.of(speeds, MEAN_SIZE), samples_per_worker * len(speeds))


def table(prefix: str, speeds: list[float]) -> dict[str, float]:
    """Print one table; returns its figures for DIF 64."""
    passes = {method: [timed(method, speeds, 8, dif) for dif in DIFS] for method in METHODS}
    base_s = min(of_method[0].seconds for of_method in passes.values())
    least_s = bound(speeds, 8, DIFS[-1])
    print(f"\n{prefix or 'homo_'}cluster, 8 samples per worker: time over the least of any method at DIF 0")
    print(f"{'DIF':>12}" + "".join(f"{dif:>8.0f}" for dif in DIFS) + "   over bound   spread   missed")
    found = {}
    for method, of_method in passes.items():
        ratios, last = [each.seconds / base_s for each in of_method], of_method[-1]
        print(
            f"{method:>12}"
            + "".join(f"{ratio:>8.3f}" for ratio in ratios)
            + f"{last.seconds / least_s:>13.3f}{last.spread:>9.1f}{last.missed:>9.3f}"
        )
        name = method.replace("-", "_") + "_" + prefix
        found[name + "dif64"] = ratios[-1]
        found[name + "over_bound"] = last.seconds / least_s
        found[name + "missed_share"] = last.missed
    return found


def few_samples() -> dict[str, float]:
    """DIF 64 with 2 samples per worker in a step: a single one may be longer than a fair share."""
    base_s = min(timed(name, CLUSTERS[""], 2, 0.0).seconds for name in METHODS)
    print("\nhomogeneous cluster, 2 samples per worker, DIF 64: time over the least of any method at DIF 0")
    found = {name: timed(name, CLUSTERS[""], 2, DIFS[-1]).seconds / base_s for name in METHODS}
    for name, ratio in found.items():
        print(f"{name:>12}{ratio:>8.3f}")
    return {"lookahead_dif64": found["lookahead-2"], "within_batch_2_per_worker_dif64": found["within-batch"]}


def cost_of_deciding() -> dict[str, float]:
    """One million samples on 1,024 unlike workers; least of several repetitions, in CPU seconds."""
    num_samples, num_workers, per_worker = LARGE
    sizes = generated_sizes(num_samples, 64.0, seed=0)
    batch_size = per_worker * num_workers
    slopes = np.linspace(1.0, 2.0, num_workers) / MEAN_SIZE
    indicators = Indicators(slopes, np.full(num_workers, 0.05))
    began = time.process_time()
    order = sample_order(num_samples, 0, 0)
    order = order[order_in_windows(sizes[order], batch_size, 4, 0, 0)]
    in_windows_s = time.process_time() - began
    began = time.process_time()
    owner = shuffle(sizes, sample_order(num_samples, 0, 0) % num_workers, indicators)
    queues = EpochQueues(sizes, owner, num_workers, [0, 0])
    queues_s = time.process_time() - began
    step_ms, draw_ms = [], []
    for start in range(0, 20 * batch_size, batch_size):
        began = time.process_time()
        deal_by_weight(sizes[order[start : start + batch_size]], 1.0 / slopes, StepCost.SUM)
        step_ms.append(1e3 * (time.process_time() - began))
        began = time.process_time()
        queues.draw(indicators, batch_size)
        draw_ms.append(1e3 * (time.process_time() - began))
    found = {
        "epoch_setup_s": max(in_windows_s, queues_s),
        "step_ms": min(step_ms),
        "chronica_step_ms": min(draw_ms),
    }
    print(
        f"\n{num_samples:,} samples, {num_workers:,} workers, {batch_size:,} samples per step "
        "(limits: 2 s, 1 ms)"
    )
    for name, value in found.items():
        print(f"  {name:<18}{value:>8.3f}")
    return found


def main() -> None:
    args = parser_of(__doc__).parse_args()
    figures: dict[str, float] = {}
    for prefix, speeds in CLUSTERS.items():
        figures |= table(prefix, speeds)
    figures |= few_samples() | cost_of_deciding()
    write_figures(args.json, {name: round(value, 4) for name, value in figures.items()})


if __name__ == "__main__":
    main()
