"""What balancing adds to a step, with 96 workers ([LBBSP] Sec. 5.5, Fig. 11: 1.1 % with NARX).

96 real ranks on this machine take steps as in a run (ranks/lbbsp_overhead.py): report, all-reduce, the
balancer's work after it, shares of the next step. Only computing is emulated, by sleeping for `--step-s`
seconds; the iterations of [LBBSP] take seconds. Policies take short turns. The measured seconds of a step
begin when the last worker has computed and end when the last worker may begin the next step. A policy adds
the difference between its median and that of `even`, which reports and decides nothing. Here 96 ranks share a
few cores, and each message waits until all of them have had their turn. On a cluster every worker has cores
of its own, so both times are shorter.

    python bench/bench_lbbsp_overhead.py --json out.json

takes 10 minutes. The JSON holds one flat object. `overhead_share` is the largest added share of all policies,
relative to the median iteration with `even`. For each policy there are `<policy>_after_ms`,
`<policy>_added_ms`, `<policy>_added_share`, and `<policy>_mean_added_share` from means instead of medians.
`<policy>_added_share_low` and `_high` show how much other turns of the same run would change the share (90 %
of bootstrap samples of whole turns); different runs differ by more. With `--riding`, `lb-bsp-cpu` also takes
turns in which it decides as with Horovod, where ranks do not meet before they sum. These turns do not count
for `overhead_share`, which is for the MPI collective.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.stats import bootstrap
from support.provenance import provenance
from support.starting import HERE, MPI_ENVIRONMENT, environment, mpirun

ALLOWED = 0.002

FloatArray = npt.NDArray[np.float64]

Steps = Mapping[str, Sequence[Sequence[float]]]
"""For each policy: seconds after computing, and of the whole step, for each step."""


def take_steps(num_workers: int, arguments: Sequence[str]) -> Steps:
    """Start the ranks and read the output of rank 0."""
    program = [sys.executable, str(HERE / "ranks/lbbsp_overhead.py"), *arguments]
    command = [*mpirun(), "-n", str(num_workers), *program]
    around = environment(**MPI_ENVIRONMENT, OMP_NUM_THREADS="1")
    done = subprocess.run(command, check=True, env=around, stdout=subprocess.PIPE, text=True)
    steps: Steps = json.loads(done.stdout)
    return steps


def figures(steps: Steps, steps_per_turn: int) -> dict[str, dict[str, float]]:
    """Milliseconds, and shares of the iteration, by policy."""
    after_s = {name: np.array(rows)[:, 0].reshape(-1, steps_per_turn) for name, rows in steps.items()}
    iteration_s = float(np.median(np.array(steps["even"])[:, 1]))
    found = {}
    for name, seconds in after_s.items():
        added_s = float(np.median(seconds) - np.median(after_s["even"]))
        mean_added_s = float(np.mean(seconds) - np.mean(after_s["even"]))
        low_s, high_s = interval_of_added(seconds, after_s["even"])
        found[name] = {
            "after_ms": 1e3 * float(np.median(seconds)),
            "added_ms": 1e3 * added_s,
            "added_share": added_s / iteration_s,
            "added_share_low": low_s / iteration_s,
            "added_share_high": high_s / iteration_s,
            "mean_added_share": mean_added_s / iteration_s,
        }
    return found


def interval_of_added(seconds: FloatArray, seconds_of_even: FloatArray) -> tuple[float, float]:
    """Range of the medians' difference in 90 % of bootstrap samples of turns; both (turns, steps)."""

    def added(turns: npt.NDArray[np.int64]) -> float:
        return float(np.median(seconds[turns]) - np.median(seconds_of_even[turns]))

    if seconds is seconds_of_even or len(seconds) < 2:
        return added(np.arange(len(seconds))), added(np.arange(len(seconds)))
    interval = bootstrap(
        (np.arange(len(seconds)),),
        added,
        vectorized=False,
        n_resamples=2000,
        confidence_level=0.9,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(interval.low), float(interval.high)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-workers", type=int, default=96, metavar="N")
    parser.add_argument("--step-s", type=float, default=2.0, help="seconds of computing")
    parser.add_argument("--steps", type=int, default=5, help="steps of each policy and turn")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument(
        "--weights", type=int, default=1000, help="weights of the network, which each step sums"
    )
    parser.add_argument("--riding", action="store_true", help="also take turns that decide as with Horovod")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    load_before = os.getloadavg()[0]
    names = ("step_s", "steps", "turns", "weights")
    options = [text for name in names for text in (f"--{name.replace('_', '-')}", str(getattr(args, name)))]
    steps = take_steps(args.num_workers, [*options, *(["--riding"] if args.riding else [])])
    iteration_s = float(np.median(steps["even"], axis=0)[1])
    rows = figures(steps, args.steps)
    print(f"{args.num_workers} workers, iterations of {iteration_s:.2f} s with even shares")
    print("policy                after computing      added, median     (90 % of samples)       mean")
    for name, row in rows.items():
        print(
            f"{name:<21} {row['after_ms']:12.2f} ms {row['added_ms']:7.2f} ms {row['added_share']:8.3%} "
            f"{row['added_share_low']:10.3%} to {row['added_share_high']:6.3%} "
            f"{row['mean_added_share']:10.3%}"
        )
    result: dict[str, float] = {
        f"{name.replace(' ', '_')}_{key}": value for name, row in rows.items() for key, value in row.items()
    }
    result["overhead_share"] = max(row["added_share"] for name, row in rows.items() if "riding" not in name)
    print(f"overhead_share {result['overhead_share']:.5f} (at most {ALLOWED})")
    if args.json:
        facts = {"num_workers": args.num_workers, "iteration_s": iteration_s, "load_before": load_before}
        args.json.write_text(json.dumps(result | facts | provenance(), indent=2) + "\n")


if __name__ == "__main__":
    main()
