"""Compare speed predictors as in [LBBSP] Table 3, on real TensorFlow workers under contention.

The recording is of three workers on two cores, beside a load that came and went on both. It drives Alg. 1 of
[LBBSP]. `ema` is a moving average, the baseline of the paper. `narx` returns the last speed until enough
iterations are recorded, and is refitted during training. Errors and times count from its first model on,
equally for all predictors. `rmse` is in samples/s, the mean over workers; `time` is the mean iteration time
over that of even batches (BSP). Below them are the policy `fitted`, which is made for workers that rarely
change, and the limit: all future speeds known, random spikes included.

    python bench/bench_lbbsp_cpu.py --json out.json

The JSON holds one flat object. `narx_over_ema` compares two RMSEs (at most 0.7), `default_over_ema` two
times, with the default predictor and with `ema` (at most 1). `<predictor>_predict_us` is the prediction on
the critical path, `_fit_s` the fit beside it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from support.figures import parser_of, write_figures
from support.predictor_replay import limit, load_recording, replay, replay_fitted

from hpcbal.config.schema.ensemble import BalanceConfig

RECORDING = Path(__file__).resolve().parents[1] / "tests" / "data" / "contention.npz"
PREDICTORS = ("ema", "memoryless", "narx")
NARX_ALLOWED = 0.7


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--recording", type=Path, default=RECORDING, metavar="FILE")
    parser.add_argument("--fit-after", type=int, default=500, metavar="ITERATION")
    parser.add_argument("--refit-every", type=int, default=200, metavar="ITERATIONS")
    args = parser.parse_args(argv)
    results: dict[str, float] = {"load_before": os.getloadavg()[0]}
    recording = load_recording(args.recording)
    traces, num_samples = recording.traces(), int(recording.num_samples[:, 0].sum())
    print(f"{'':<13}   rmse  time/even  predict_us   fit_s")
    for name in PREDICTORS:
        row = replay(name, traces, num_samples, args.fit_after, args.refit_every)
        print(
            f"{name:<13}{row['rmse']:7.2f}  {row['time']:9.3f}  {row['predict_us']:10.0f}  "
            f"{row['fit_s']:6.3f}",
            flush=True,
        )
        results |= {f"{name}_{key}": value for key, value in row.items()}
    for name, function in (("fitted", replay_fitted), ("limit", limit)):
        results[f"{name}_time"] = function(traces, num_samples, args.fit_after)
        print(f"{name:<20}  {results[f'{name}_time']:9.3f}", flush=True)
    default = BalanceConfig().predictor
    for key, quotient, wanted in (
        ("narx_over_ema", ("narx_rmse", "ema_rmse"), NARX_ALLOWED),
        ("default_over_ema", (f"{default}_time", "ema_time"), 1.0),
    ):
        results[key] = results[quotient[0]] / results[quotient[1]]
        print(f"{key} {results[key]:.3f} (at most {wanted})")
    write_figures(args.json, results)


if __name__ == "__main__":
    main()
