"""What balancing costs on the critical path of a step, with 96 workers ([LBBSP] Sec. 5.5, Fig. 11: 1.1 %).

96 real ranks on this machine take steps as a run does (lbbsp_overhead_ranks.py): report, all-reduce, what the
balancer does after it, shares of the next step. Only computing is emulated, by sleeping for `--step-s`
seconds; the iterations of [LBBSP] last seconds. Policies take turns. Two figures for each:

- `added`: seconds from when the last worker has computed until the last one may begin the next step, medians,
  less those of `even`, where nothing is reported and decided. Here 96 ranks share a few cores, and each
  message waits until all of them have had their turn; on a cluster every worker has cores of its own.
- `own cores`: what it would be there, an estimate. The longest CPU time of any one rank in the balancer's
  code (the master's decision is in it, where others wait for it), as measured in the same steps; and
  messages, measured between two ranks with a core each, in shared memory, times log2(96) for the rounds that
  96 ranks need: what the all-reduce takes longer with the reports in it, and, with `lb-bsp-cpu`, the message
  that tells the shares.

    python bench/bench_lbbsp_overhead.py --json out.json

takes 4 minutes. The JSON holds one flat object: `overhead_share` is the largest `own cores` of all policies
over the iteration with `even`, `added_share` likewise of `added`; `<policy>_added_ms`, `<policy>_cpu_ms` and
`<policy>_own_cores_ms` tell of each.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bench_dataplane import MPI_ENVIRONMENT, mpirun
from provenance import provenance

HERE = Path(__file__).resolve().parent
ALLOWED = 0.002


def run_ranks(num_ranks: int, arguments: Sequence[str]) -> Any:
    """Start ranks, and read what rank 0 prints."""
    paths = [str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        **MPI_ENVIRONMENT,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }
    program = [sys.executable, str(HERE / "lbbsp_overhead_ranks.py"), *arguments]
    command = [*mpirun(), "-n", str(num_ranks), *program]
    done = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def figures(
    steps: Mapping[str, Sequence[Sequence[float]]], messages: Sequence[float], num_workers: int
) -> dict[str, dict[str, float]]:
    """Milliseconds and shares of the iteration, by policy.

    Args:
        steps: seconds after computing, CPU seconds of the balancer, and seconds of the step: rows by policy.
        messages: seconds between two ranks: a plain sum, one with reports, and telling the shares.
    """
    medians = {name: np.median(rows, axis=0) for name, rows in steps.items()}
    even_s, _, iteration_s = medians["even"]
    plain_s, with_reports_s, tell_s = messages
    rounds = math.log2(max(num_workers, 2))
    found = {}
    for name, (after_s, cpu_s, _) in medians.items():
        message_s = 0.0 if name == "even" else rounds * max(with_reports_s - plain_s, 0.0)
        message_s += rounds * tell_s if name.startswith("lb-bsp-cpu") else 0.0
        own_s = 0.0 if name == "even" else cpu_s + message_s
        found[name] = {
            "after_ms": 1e3 * after_s,
            "added_ms": 1e3 * (after_s - even_s),
            "added_share": (after_s - even_s) / iteration_s,
            "cpu_ms": 1e3 * cpu_s,
            "own_cores_ms": 1e3 * own_s,
            "own_cores_share": own_s / iteration_s,
        }
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-workers", type=int, default=96, metavar="N")
    parser.add_argument("--step-s", type=float, default=2.0, help="seconds of computing")
    parser.add_argument("--steps", type=int, default=6, help="of each policy and turn")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--weights", type=int, default=1000, help="of the network; they are summed in a step")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    load_before = os.getloadavg()[0]
    messages = run_ranks(2, ["--messages", str(args.num_workers), "--weights", str(args.weights)])
    names = ("step_s", "steps", "turns", "weights")
    options = [text for name in names for text in (f"--{name.replace('_', '-')}", str(getattr(args, name)))]
    steps = run_ranks(args.num_workers, options)["steps"]
    iteration_s = float(np.median(steps["even"], axis=0)[2])
    rows = figures(steps, messages, args.num_workers)
    print(
        f"{args.num_workers} workers, iterations of {iteration_s:.2f} s with even shares; between two ranks:"
    )
    print("sum {:.3f} ms, with reports {:.3f} ms, telling {:.3f} ms".format(*(1e3 * s for s in messages)))
    print("policy            after computing      added              CPU of one rank   own cores")
    for name, row in rows.items():
        print(
            f"{name:<17} {row['after_ms']:12.2f} ms {row['added_ms']:7.2f} ms {row['added_share']:8.3%} "
            f"{row['cpu_ms']:15.3f} ms {row['own_cores_ms']:8.3f} ms {row['own_cores_share']:8.4%}"
        )
    result: dict[str, float] = {
        f"{name.replace(' ', '_')}_{key}": value for name, row in rows.items() for key, value in row.items()
    }
    result["overhead_share"] = max(row["own_cores_share"] for row in rows.values())
    result["added_share"] = max(row["added_share"] for row in rows.values())
    for key in ("overhead_share", "added_share"):
        print(f"{key} {result[key]:.5f} (at most {ALLOWED})")
    if args.json:
        facts = {"num_workers": args.num_workers, "iteration_s": iteration_s, "load_before": load_before}
        args.json.write_text(json.dumps(result | facts | provenance(), indent=2) + "\n")


if __name__ == "__main__":
    main()
