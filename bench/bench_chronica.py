"""Compare ways to deal samples of unequal size to workers: emulated workers in virtual time.

One table per cluster, homogeneous (8 equal workers) and heterogeneous (4 + 4 of half the speed): the time of
a pass over the least time of any method at DIF 0, for DIF 0 to 64 ([CHRONICA] Table IV, where TensorFlow pays
2.5 and CHRONICA 1.07), over a bound that no method can beat, and errors of prediction (Fig. 9, as a share of
a step). Then 4 and 2 samples per worker, 1 to 32 workers (Fig. 14), what `lookahead` costs in randomness, the
time that a decision takes for one million samples on 1,024 workers, and what deciding adds to the steps of
real ranks (support/dealing_overhead.py). The emulated workers' times have 2 % noise and are learnt while
training, as in a run. `boa` is the best split by counts alone: it knows the workers' speeds, but no sizes.

Then PLAID (scripts/get_series.sh): real runs with TensorFlow (support/plaid.py), and a replay of what
gradient weights do to learning (workloads/series_weights.py).

    python bench/bench_chronica.py --json out.json

The JSON holds one flat object. Targets: `chronica_dif64` 1.07, `within_batch_dif64` 1.02, `lookahead_dif64`
1.15 (2 batches, 2 samples per worker), `chronica_hetero_dif64` 1.10, `within_batch_hetero_dif64` 1.04,
`epoch_setup_s` 2, `step_ms` and `chronica_step_ms` 1, `overhead_share` 0.005, `plaid_over_random` 0.85,
`plaid_over_grouped` 1.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
from support import plaid
from support.dealing_overhead import overhead
from support.provenance import provenance
from workloads.unequal import METHODS, Pass, Trial, Workers, lower_bound_s

from hpcbal.policies.batching.time_curves import TimeCurves
from hpcbal.policies.orders import sample_order
from hpcbal.policies.samples import (
    EpochQueues,
    Indicators,
    SampleTask,
    deal,
    order_in_windows,
    shuffle,
    size_order,
)
from hpcbal.policies.samples.drawing import MEAN_SIZE, generated_sizes

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


def small_shares() -> dict[str, float]:
    """DIF 64 where a step has few samples per worker: a single one may be longer than a fair share."""
    print("\nhomogeneous cluster, DIF 64, time over the least of any method at DIF 0")
    print(f"{'':>12}    4 per worker    2 per worker")
    base_s = {few: min(timed(name, CLUSTERS[""], few, 0.0).seconds for name in METHODS) for few in (4, 2)}
    found = {}
    for method in METHODS:
        row = [timed(method, CLUSTERS[""], few, DIFS[-1]).seconds / base_s[few] for few in base_s]
        print(f"{method:>12}" + "".join(f"{ratio:>16.3f}" for ratio in row))
        for few, ratio in zip(base_s, row, strict=True):
            found[f"{method.replace('-', '_')}_{few}_per_worker_dif64"] = ratio
    return found


def scaling() -> dict[str, float]:
    """Speed-up over one worker at DIF 64 with 4 samples per worker, as in Fig. 14."""
    print("\nspeed-up over 1 worker, DIF 64, 4 samples per worker: equal workers, and half of half the speed")
    counts, found = (1, 2, 4, 8, 16, 32), {}
    print(f"{'workers':>12}" + "".join(f"{count:>16}" for count in counts))
    sizes = generated_sizes(4 * 32 * 25, 64.0, seed=0)
    for method in METHODS:
        took = []
        for count in counts:
            slow = count // 2
            trials = [
                Trial(method, sizes, Workers.of(speeds, MEAN_SIZE), 4)
                for speeds in ([1.0] * count, [1.0] * (count - slow) + [0.5] * slow)
            ]
            took.append([[trial.run_pass(number).seconds for number in range(2)][-1] for trial in trials])
        ups = [[took[0][place] / each for place, each in enumerate(row)] for row in took]
        print(f"{method:>12}" + "".join(f"{same:>8.2f}{unlike:>8.2f}" for same, unlike in ups))
        name = method.replace("-", "_")
        for count, (same, unlike) in zip(counts, ups, strict=True):
            found[f"{name}_speedup_{count}"], found[f"{name}_speedup_hetero_{count}"] = same, unlike
    return found


def randomness() -> dict[str, float]:
    """Share of the sizes' variance between batches of 16: about 1/16 in random order."""
    sizes = generated_sizes(16 * 3200, 64.0, seed=0)
    found = {
        f"between_batches_{name}": size_order(sizes[order_in_windows(sizes, 16, k, 0, 0)], 16)
        for name, k in (
            ("random", 1),
            ("lookahead_2", 2),
            ("lookahead_4", 4),
            ("lookahead_8", 8),
            ("grouped", 50),
        )
    }
    print("\nshare of the sizes' variance that lies between batches of 16")
    for name, share in found.items():
        print(f"  {name.removeprefix('between_batches_'):<14}{share:>8.3f}")
    return found


def cost_of_deciding() -> dict[str, float]:
    """One million samples on 1,024 unlike workers; least of several repetitions, in CPU seconds."""
    num_samples, num_workers, per_worker = LARGE
    sizes = generated_sizes(num_samples, 64.0, seed=0)
    batch_size = per_worker * num_workers
    slopes = np.linspace(1.0, 2.0, num_workers) / MEAN_SIZE
    curves = TimeCurves(np.zeros(num_workers), np.full(num_workers, 0.05), slopes)
    indicators = Indicators(slopes, curves.launch_s)
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
        deal(SampleTask(sizes[order[start : start + batch_size]], curves))
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


def emulated() -> dict[str, float]:
    """All figures of emulated workers."""
    figures: dict[str, float] = {}
    for prefix, speeds in CLUSTERS.items():
        figures |= table(prefix, speeds)
    figures |= small_shares()
    figures["lookahead_dif64"] = figures["lookahead_2_2_per_worker_dif64"]
    figures |= scaling()
    figures |= randomness()
    return figures | cost_of_deciding() | overhead()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    plaid.add_arguments(parser)
    args = parser.parse_args()
    plaid.check(parser, args)
    figures = ({} if args.only_real else emulated()) | plaid.figures(args)
    if args.json:
        rounded = {name: round(value, 4) for name, value in figures.items()}
        args.json.write_text(json.dumps(rounded | provenance(), indent=2))


if __name__ == "__main__":
    main()
