"""What it costs to deal samples of unequal size, as a share of a step; see ranks/dealing_overhead.py.

Real ranks take the steps of a run; only computing is a sleep. Two costs are added to those of `in-order`,
which deals by position, with even shares, and measures nothing:

- between: seconds from the end of the last rank's computing to the beginning of the next. The report and the
  announcement travel there, and the next step is planned. Lower quartiles are compared, because other
  programs on the host only ever add; the difference of the medians is in the JSON as well.
- beside: CPU seconds of the thread that fetches while the step computes, where sizes are read and samples are
  dealt, and of the thread in which the master decides on speeds. On cores of its own a worker does not notice
  them; with all cores busy they lengthen the step.

The share that counts is their sum, of the way that costs most. The ranks share the host's cores, so on a host
with fewer cores than ranks what they do between steps takes longer than on a cluster.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

import numpy as np
from support.starting import HERE, MPI_ENVIRONMENT, environment, mpirun

NUM_RANKS, STEP_S = 4, 1.0
"""[CHRONICA] has steps of about 1.8 s (Table VI, Sec. VI-E); shorter steps make the share larger, longer ones
smaller. The milliseconds hardly depend on them."""
ALLOWED = 0.005

Steps = Mapping[str, Sequence[Sequence[float]]]
"""For each way of dealing: seconds of the step, between, of fetching and of deciding, for each step."""


def take_steps(num_ranks: int = NUM_RANKS, step_s: float = STEP_S) -> Steps:
    """Start the ranks and read the output of rank 0."""
    program = [sys.executable, str(HERE / "ranks/dealing_overhead.py"), "--step-s", str(step_s)]
    around = environment(**MPI_ENVIRONMENT, OMP_NUM_THREADS="1")
    command = [*mpirun(), "-n", str(num_ranks), *program]
    done = subprocess.run(command, check=True, env=around, stdout=subprocess.PIPE, text=True)
    steps: Steps = json.loads(done.stdout)
    return steps


def shares_of(steps: Steps) -> dict[str, dict[str, float]]:
    """What each way adds to `in-order`: milliseconds, and a share of its own median step."""
    medians = {name: np.median(np.array(rows), axis=0) for name, rows in steps.items()}
    quartiles = {name: float(np.quantile(np.array(rows)[:, 1], 0.25)) for name, rows in steps.items()}
    found = {}
    for name, of_way in medians.items():
        median_s, *beside_s = (of_way - medians["in-order"])[1:].tolist()
        between_s = quartiles[name] - quartiles["in-order"]
        found[name] = {
            "between_ms": 1e3 * between_s,
            "between_median_ms": 1e3 * median_s,
            "beside_ms": 1e3 * sum(beside_s),
            "share": (max(between_s, 0.0) + sum(beside_s)) / float(of_way[0]),
        }
    return found


def overhead() -> dict[str, float]:
    """Measure and print; returns the figures for the JSON."""
    load_before = os.getloadavg()[0]
    steps = take_steps()
    rows = shares_of(steps)
    step_s = float(np.median(np.array(steps["in-order"])[:, 0]))
    print(f"\nadded to steps of {step_s:.2f} s by deciding who takes what, {NUM_RANKS} ranks")
    print(f"{'':>20}     between      beside   share of a step (at most {ALLOWED})")
    for name, row in rows.items():
        print(f"{name:>20}{row['between_ms']:>9.2f} ms{row['beside_ms']:>9.2f} ms{row['share']:>12.5f}")
    found = {
        f"overhead_{name.replace(' ', '_').replace('-', '_')}_{key}": value
        for name, row in rows.items()
        for key, value in row.items()
        if name != "in-order"
    }
    facts = {"overhead_step_s": step_s, "overhead_load_before": load_before}
    return found | facts | {"overhead_share": max(row["share"] for row in rows.values())}
