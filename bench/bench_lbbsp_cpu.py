"""Balance workers of shared CPUs: speed predictors as in [LBBSP] Table 3, and real workers of unequal speed.

Four parts (`--parts`), each with a table:

- `simulated`: traces of 32 workers whose tasks come and go (contention/traces.py), over several seeds;
- `recorded`: real TensorFlow workers under real contention, recorded by record_contention.py;
- `real`: three and five TensorFlow workers at speeds 1 : 1/2 : 1/2 and 1 : 1/4 : 1/4 : 1/4 : 1/4, pinned to
  two cores, in a real `hpcbal run`. The table shows seconds of a step after settling with even shares, with
  the best of some fixed splits around the ideal one, and with balancing. Each ratio compares the median steps
  of two ways in the same turn; the result is the median over the turns. This part takes 20 minutes, or 10 for
  each setting. Steps take about 0.3 s, which is short compared with the seconds of [LBBSP]; `--channels 32`
  makes them 0.1 s;
- `contended`: three TensorFlow workers at 1 : 1/2 : 1/2 in real runs, while a load comes and goes on both
  cores as in the recording (contention/real.py). The table shows seconds of a step with each predictor over
  those with even shares. It takes 20 minutes for each schedule of bursts (`--schedules`).

In the first two parts, traces drive Alg. 1. Fitted predictors return the last speed until enough iterations
are recorded and the time of a first fit, which runs beside training, has passed; they are refitted during
training. Errors and times count from the first model on, equally for all predictors.
`rmse` is in samples/s, the mean over workers; `time` is the mean iteration time over that of even batches
(BSP). Below them are the policy `fitted`, which is made for workers that rarely change, and the limit: all
future speeds known, random spikes included.

    python bench/bench_lbbsp_cpu.py --json out.json
    python bench/bench_lbbsp_cpu.py --parts real --settings 2 --turns 2

The JSON holds one flat object. `narx_over_ema` compares the two RMSEs on the recording, `sim_narx_over_ema`
on the simulated traces. `real_over_best` is the iteration time of `lb-bsp-cpu`, which docs/load-balancing.md
recommends for CPUs, over that of the best split, for the worse setting; `fitted_over_best` is that of
`fitted`. `<part>_<predictor>_predict_us` is the prediction on the critical path, `_fit_s` the fit beside it.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

import contention.real as real_contention
import numpy as np
from contention.recording import load_recording
from contention.replay import limit, replay, replay_fitted
from contention.shares import Setting, best_fixed, is_bracketed, measure, over, range_over
from contention.traces import Traces, make_traces
from support.provenance import provenance

from hpcbal.policies.batching.speed import PREDICTORS
from hpcbal.speed_models import FITTERS

RECORDING = real_contention.RECORDING
SAMPLES_PER_WORKER = 128  # ResNet-32, [LBBSP] Sec. 5.3
PARTS = ("simulated", "recorded", "real", "contended")
RECOMMENDED = "lb-bsp-cpu"
OVER_BEST_ALLOWED, NARX_ALLOWED = 1.05, 0.7


def two_cores() -> tuple[int, int]:
    """The cores to which real workers are pinned."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("bench_lbbsp_cpu: real workers need two cores; this process may use one")
    return cores[0], cores[1]


def settings_of(numbers: Sequence[int]) -> list[Setting]:
    """One worker alone on the first core; for each setting, a number of workers on the second."""
    cores = two_cores()
    return [Setting(f"1_{number}", (cores[0], *(cores[1],) * number), batch_size=320) for number in numbers]


def predictors_table(
    part: str, all_traces: Sequence[Traces], num_samples: int, args: argparse.Namespace
) -> dict[str, float]:
    """Print Table 3 for some traces, means over all; returns figures by `<part>_<predictor>_<figure>`."""
    results: dict[str, float] = {}
    print(f"{part:<11}   rmse  time/even  predict_us   fit_s")
    for name in args.predictors:
        rows = [
            replay(name, traces, num_samples, args.fit_after, args.refit_every, args.fit_lasts)
            for traces in all_traces
        ]
        row = {key: float(np.mean([each[key] for each in rows])) for key in rows[0]}
        print(
            f"{name:<10} {row['rmse']:8.3f}  {row['time']:9.3f}  {row['predict_us']:10.0f}  "
            f"{row['fit_s']:6.2f}",
            flush=True,
        )
        results |= {f"{part}_{name}_{key}": value for key, value in row.items()}
    for name, function in (("policy fitted", replay_fitted), ("limit", limit)):
        time = float(
            np.mean([function(traces, num_samples, args.fit_after + args.fit_lasts) for traces in all_traces])
        )
        print(f"{name:<19}  {time:9.3f}", flush=True)
        results[f"{part}_{name.removeprefix('policy ')}_time"] = time
    return results


def real_table(setting: Setting, num_turns: int, channels: int) -> dict[str, float]:
    """Print the iteration times of one setting; returns their ratios to the best split."""
    turns = measure(setting, num_turns, channels)
    best_way = best_fixed(turns)
    best = turns[best_way]
    heading = f"real 1:{setting.name[2:]}x1/{setting.name[2:]}"
    print(f"{heading:<12}        ms  over best  (of all turns; {best_way})")
    results = {f"real_{setting.name}_best_s": float(np.median(best))}
    for way, seconds in turns.items():
        ratio, (low, high) = over(seconds, best), range_over(seconds, best)
        spread = f"{low:.3f} to {high:.3f}" if way != "even" else f"in theory {setting.even_over_best:.2f}"
        print(f"{way:<12} {1e3 * np.median(seconds):9.1f}  {ratio:9.3f}  ({spread})", flush=True)
        key = f"real_{setting.name}_{way.replace(' ', '_')}_over_best"
        results |= {key: ratio, f"{key}_low": low, f"{key}_high": high}
    if not is_bracketed(best_way):
        print(f"the best split may be beyond {best_way}, the last one tried in that direction", flush=True)
    return results


def main(argv: Sequence[str] | None = None) -> None:
    names = [*sorted(PREDICTORS), *sorted(FITTERS)]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS, metavar="PART")
    parser.add_argument("--num-workers", type=int, default=32, metavar="N", help="simulated")
    parser.add_argument("--iterations", type=int, default=1500, help="simulated")
    parser.add_argument("--seeds", type=int, default=2, help="simulated")
    parser.add_argument("--recording", type=Path, default=RECORDING, metavar="FILE")
    parser.add_argument("--fit-after", type=int, default=500, metavar="ITERATION")
    parser.add_argument("--refit-every", type=int, default=200, metavar="ITERATIONS")
    parser.add_argument("--fit-lasts", type=int, default=100, metavar="ITERATIONS")
    parser.add_argument("--predictors", nargs="+", default=names, choices=names, metavar="NAME")
    parser.add_argument(
        "--settings",
        nargs="+",
        type=int,
        default=[2, 4],
        choices=range(2, 17),
        metavar="N",
        help="real: workers on the second core, 2 to 16",
    )
    parser.add_argument("--turns", type=int, default=4, help="real: turns of all ways; an even number")
    parser.add_argument(
        "--channels", type=int, default=64, help="real: channels of the network's convolutions"
    )
    parser.add_argument(
        "--schedules", type=int, default=1, metavar="N", help="contended: schedules of bursts"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    if args.turns < 2 or args.turns % 2:
        parser.error(
            f"--turns: got {args.turns}, allowed: 2, 4, 6, ..., because every second one goes backwards"
        )
    settings = settings_of(args.settings) if "real" in args.parts else []
    cores = two_cores() if "contended" in args.parts else None
    results: dict[str, float] = {"load_before": os.getloadavg()[0]}

    def keep(figures: dict[str, float] | None = None) -> None:
        """Keep the figures so far, because a later part may fail after many minutes."""
        results.update(figures or {})
        if args.json and len(results) > 1:
            args.json.write_text(json.dumps(results | provenance(), indent=2) + "\n")

    if "simulated" in args.parts:
        traces = [make_traces(args.num_workers, args.iterations, seed) for seed in range(args.seeds)]
        results |= predictors_table("simulated", traces, SAMPLES_PER_WORKER * args.num_workers, args)
    if "recorded" in args.parts:
        recording = load_recording(args.recording)
        num_samples = int(recording.num_samples[:, 0].sum())
        results |= predictors_table("recorded", [recording.traces()], num_samples, args)
    for part, key in (("simulated", "sim_narx_over_ema"), ("recorded", "narx_over_ema")):
        if {f"{part}_narx_rmse", f"{part}_ema_rmse"} <= set(results):
            results[key] = results[f"{part}_narx_rmse"] / results[f"{part}_ema_rmse"]
            print(f"{key} {results[key]:.3f}" + (f" (at most {NARX_ALLOWED})" if part == "recorded" else ""))
    keep()
    if settings:
        for setting in settings:
            results |= real_table(setting, args.turns, args.channels)
            keep()
        for key, way in (("real_over_best", RECOMMENDED), ("fitted_over_best", "fitted")):
            results[key] = max(results[f"real_{setting.name}_{way}_over_best"] for setting in settings)
            print(f"{key} {results[key]:.3f} (at most {OVER_BEST_ALLOWED})")
    if cores is not None:
        ways = [way for way in real_contention.WAYS if way in (*args.predictors, "fixed", "fitted")]
        keep(real_contention.table(ways, cores, range(args.schedules), keep))
    keep()


if __name__ == "__main__":
    main()
