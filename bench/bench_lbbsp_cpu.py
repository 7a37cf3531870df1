"""Balance simulated workers of a shared CPU cluster with every speed predictor, as in [LBBSP] Table 3.

Traces of 32 workers whose tasks come and go (`resource_traces.py`) drive Alg. 1. Fitted predictors answer by
the average until enough iterations are recorded, and are refitted as training goes on; errors and times count
from then on, for all predictors alike. `rmse` is in samples/s, the mean over workers; `time` is the mean
iteration time over that of even batches (BSP). Below stand the policy `fitted`, which is made for workers
that change seldom, and the limit: who knows the next speeds, random spikes included.

    python bench/bench_lbbsp_cpu.py --num-workers 32 --seeds 3 --json out.json

The JSON holds one flat object; `sim_narx_over_ema` compares the two RMSEs. (`narx_over_ema` is kept for
recordings of real contention.) `<predictor>_predict_us` is what the critical path sees, `_fit_s` what runs
beside it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from provenance import provenance
from resource_traces import Traces, make_traces

from hpcbal.policies.batching import BATCHING, BatchTask, Observation
from hpcbal.policies.batching.rounding import apportion
from hpcbal.policies.batching.speed import PREDICTORS
from hpcbal.speed_models import FITTERS, SpeedLearner

SAMPLES_PER_WORKER = 128  # ResNet-32, [LBBSP] Sec. 5.3


def observe(traces: Traces, batch_sizes: Sequence[int], k: int) -> list[Observation]:
    """What workers did in iteration k, and the resources at the start of the next one."""
    times_s = np.array(batch_sizes) / traces.speeds[:, k]
    return [
        Observation(size, float(time_s), cpu_share=float(cpu), memory_share=float(memory))
        for size, time_s, cpu, memory in zip(
            batch_sizes, times_s, traces.cpu[:, k + 1], traces.memory[:, k + 1], strict=True
        )
    ]


def run(name: str, traces: Traces, fit_after: int, refit_every: int) -> dict[str, float]:
    """One predictor on one set of traces."""
    num_workers, num_iterations = traces.speeds.shape
    learner = SpeedLearner(name, num_workers, first_fit=fit_after, refit_every=refit_every)
    state = learner.policy.start(BatchTask.uniform(SAMPLES_PER_WORKER * num_workers, num_workers))
    squares, times_s, even_s, predict_s, fit_s = [], [], [], 0.0, []
    for k in range(num_iterations - 1):
        if k > fit_after:
            times_s.append(float((np.array(state.batch_sizes) / traces.speeds[:, k]).max()))
            even_s.append(SAMPLES_PER_WORKER / float(traces.speeds[:, k].min()))
        seen = observe(traces, state.batch_sizes, k)
        learner.record(seen)
        if (job := learner.job()) is not None:
            start = time.perf_counter()
            learner.use(job())
            fit_s.append(time.perf_counter() - start)
        state = learner.policy.decide(state, seen).state
        if k >= fit_after:
            start = time.perf_counter()
            predicted = learner.policy.predictor.predict(state.history)
            predict_s += time.perf_counter() - start
            squares.append((predicted - traces.speeds[:, k + 1]) ** 2)
    return {
        "rmse": float(np.sqrt(np.mean(squares, axis=0)).mean()),
        "time": float(np.mean(times_s) / np.mean(even_s)),
        "predict_us": 1e6 * predict_s / len(squares),
        "fit_s": float(np.mean(fit_s)) if fit_s else 0.0,
    }


def run_fitted(traces: Traces, fit_after: int) -> float:
    """Mean iteration time over that of even batches under the policy that learns curves, not speeds."""
    num_workers, num_iterations = traces.speeds.shape
    policy = BATCHING["fitted"]
    state = policy.start(BatchTask.uniform(SAMPLES_PER_WORKER * num_workers, num_workers))
    times_s, even_s = [], []
    for k in range(num_iterations - 1):
        if k > fit_after:
            times_s.append((np.array(state.batch_sizes) / traces.speeds[:, k]).max())
            even_s.append(SAMPLES_PER_WORKER / traces.speeds[:, k].min())
        state = policy.decide(state, observe(traces, state.batch_sizes, k)).state
    return float(np.mean(times_s) / np.mean(even_s))


def limit(traces: Traces, fit_after: int) -> float:
    """Mean iteration time over that of even batches when every speed is known beforehand."""
    num_workers, num_iterations = traces.speeds.shape
    total = SAMPLES_PER_WORKER * num_workers
    known_s, even_s = [], []
    for k in range(fit_after + 1, num_iterations - 1):
        speeds = traces.speeds[:, k]
        known_s.append((np.array(apportion(total, speeds.tolist())) / speeds).max())
        even_s.append(SAMPLES_PER_WORKER / speeds.min())
    return float(np.mean(known_s) / np.mean(even_s))


def main(argv: Sequence[str] | None = None) -> None:
    names = [*sorted(PREDICTORS), *sorted(FITTERS)]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-workers", type=int, default=32, metavar="N")
    parser.add_argument("--iterations", type=int, default=1500)
    parser.add_argument("--fit-after", type=int, default=500, metavar="ITERATION")
    parser.add_argument("--refit-every", type=int, default=200, metavar="ITERATIONS")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--predictors", nargs="+", default=names, choices=names, metavar="NAME")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    all_traces = [make_traces(args.num_workers, args.iterations, seed) for seed in range(args.seeds)]
    results: dict[str, float] = {}
    print("predictor     rmse  time/even  predict_us   fit_s")
    for name in args.predictors:
        rows = [run(name, traces, args.fit_after, args.refit_every) for traces in all_traces]
        row = {key: float(np.mean([each[key] for each in rows])) for key in rows[0]}
        print(
            f"{name:<10} {row['rmse']:7.3f}  {row['time']:9.3f}  {row['predict_us']:10.0f}  "
            f"{row['fit_s']:6.2f}",
            flush=True,
        )
        results |= {f"{name}_{key}": value for key, value in row.items()}
    results["fitted_time"] = float(np.mean([run_fitted(traces, args.fit_after) for traces in all_traces]))
    print(f"policy fitted      {results['fitted_time']:9.3f}", flush=True)
    results["limit_time"] = float(np.mean([limit(traces, args.fit_after) for traces in all_traces]))
    print(f"limit              {results['limit_time']:9.3f}")
    if {"narx", "ema"} <= set(args.predictors):
        results["sim_narx_over_ema"] = results["narx_rmse"] / results["ema_rmse"]
        print(f"sim_narx_over_ema {results['sim_narx_over_ema']:.3f}")
    if args.json:
        args.json.write_text(json.dumps(results | provenance(), indent=2) + "\n")


if __name__ == "__main__":
    main()
