"""How often runs end in the band that `hpcbal plan` gives, how wide it is, and how well it predicts use.

    python bench/bench_time_band.py --json out.json

60 emulated runs that differ at random, three quarters of them ensembles under any schedule, the others jobs
on parameter servers (workloads/time_band.py). Each is a real `hpcbal run` with all its ranks and trains for 2
to 5 seconds; only computing and links are paced. The calibration is taken online: each run is planned just
before it starts, with the functions of `hpcbal plan`, from the runs of its kind before it. The first 9 runs
of each kind, before which no band has a guarantee, come first and do not count.

- `band_coverage`: share of the runs in the band (0.85 to 0.97). `band_width`: (upper - lower) / median of the
  band, median over the runs (at most 0.6).
- `naive_coverage`, `naive_width`: the peer, epochs times samples over the rate, shared out over the slots,
  with a band from the same earlier runs by the same rule. `naive_as_is`: how often it is within a fifth
  without one.
- `limit_width`: width of the band if the time of each start were known; what is left is noise of the host and
  what the simulator leaves out.
- `use_error`: |predicted - measured| share of the slots' time in which they train, mean over the runs (at
  most 0.05); `use_error_max`. The peer `naive_use_error` takes the mean of the earlier runs of the kind.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from support.figures import parser_of, write_figures
from support.starting import train
from workloads.time_band import NUM_TRAIN, NUM_VALIDATION, ensemble, job, naive_s, stretched

from hpcbal.cli.planning.prediction import Sources, prediction_of
from hpcbal.config import RunConfig, load_config
from hpcbal.planning.allocation import AllocationPrediction
from hpcbal.planning.calibration import LEAST_RUNS, EarlierRun, time_band
from hpcbal.telemetry.ledger.run import RunFinishedLine, WholeRun

SHORTEST_S, LONGEST_S = 2.0, 5.0
JOBS_EVERY = 4
NEAR = 0.2
COVERAGE_ALLOWED, WIDTH_ALLOWED, USE_ERROR_ALLOWED = (0.85, 0.97), 0.6, 0.05


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run, planned and done.

    Attributes:
        kind: ensemble or paramserver.
        planned: just before it.
        naive: seconds that the peer predicts.
        whole: what its ledger says it took.
        command_s: of the command, by the clock of this bench.
    """

    kind: str
    planned: AllocationPrediction
    naive: float
    whole: WholeRun
    command_s: float

    @property
    def is_inside(self) -> bool:
        return self.planned.band.low_s <= self.whole.active_s <= self.planned.band.high_s


def read(config: Mapping[str, Any], folder: Path) -> tuple[RunConfig, Path]:
    """Return the configuration as `hpcbal plan` reads it, and its file."""
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(dict(config), sort_keys=False), encoding="utf-8")
    return load_config(path), path


def plan(config: Mapping[str, Any], folder: Path) -> AllocationPrediction:
    """Plan a run, from the file of earlier runs."""
    loaded, path = read(config, folder)
    is_job = loaded.kind == "paramserver"
    sources = Sources(path, samples=None if is_job else NUM_TRAIN + NUM_VALIDATION, open_data=is_job)
    slots = config["slots"]["per_node"]
    return prediction_of(loaded, sources, num_nodes=1, slots_per_node=slots, warn=sys.exit)


def draw(kind: str, rng: random.Random, folder: Path) -> dict[str, Any]:
    """Draw a run that is predicted to train for SHORTEST_S to LONGEST_S."""
    config = (job if kind == "paramserver" else ensemble)(rng, folder / "out")
    wanted_s = rng.uniform(SHORTEST_S, LONGEST_S)
    found = plan(config, folder)
    return stretched(config, wanted_s / (found.wall_time_s - found.band.startup_s))


def run_for_real(kind: str, rng: random.Random, history: Path) -> Outcome:
    """Draw, plan and do a run."""
    with tempfile.TemporaryDirectory(prefix="bench_time_band_") as scratch:
        folder = Path(scratch)
        config = draw(kind, rng, folder)
        planned, began_s = plan(config, folder), time.monotonic()
        ledger = train(config, folder, environ={"HPCBAL_CALIBRATION": str(history)})
        command_s = time.monotonic() - began_s
    last = ledger[-1].line
    assert isinstance(last, RunFinishedLine)
    assert last.whole is not None
    return Outcome(kind, planned, naive_s(config), last.whole, command_s)


def as_earlier(outcome: Outcome, predicted_s: float, startup_s: float) -> EarlierRun:
    """Return a run as if something else had been predicted of it."""
    active_s = outcome.whole.active_s - outcome.whole.startup_s + startup_s
    return EarlierRun(predicted_s, startup_s, active_s, 0.0, 1, 1, None, outcome.whole.busy)


def figures(outcomes: Sequence[Outcome], num_before: int) -> dict[str, float]:
    """Return all figures, of the runs after the first `num_before` of each kind."""
    inside, widths, errors = [], [], []
    naive_inside, naive_widths, naive_near, naive_errors = [], [], [], []
    limit_widths, after_end_s, ratios = [], [], []
    for index, each in enumerate(outcomes):
        before = [other for other in outcomes[:index] if other.kind == each.kind]
        if len(before) < num_before:
            continue
        whole, band = each.whole, each.planned.band
        inside.append(each.is_inside)
        widths.append(band.width)
        ratios.append(whole.active_s / each.planned.wall_time_s)
        after_end_s.append(each.command_s - whole.active_s)
        naive = time_band(each.naive, [as_earlier(o, o.naive, o.whole.startup_s) for o in before])
        naive_inside.append(naive.low_s <= whole.active_s <= naive.high_s)
        naive_widths.append(naive.width)
        naive_near.append(abs(math.log(whole.active_s / each.naive)) <= math.log(1.0 + NEAR))
        # With each start known, it is a constant that neither the runs nor the band has an error of.
        start_s = band.startup_s
        known = [as_earlier(o, o.whole.predicted_s or math.nan, start_s) for o in before]
        limit_widths.append(time_band(each.planned.wall_time_s - start_s, known).width)
        if each.planned.busy is not None:
            errors.append(abs(each.planned.busy - whole.busy))
            naive_errors.append(abs(statistics.mean(o.whole.busy for o in before) - whole.busy))
    return {
        "num_runs": len(inside),
        "num_jobs": sum(o.kind == "paramserver" for o in outcomes) - num_before,
        "band_coverage": statistics.mean(inside),
        "band_width": statistics.median(widths),
        "band_width_max": max(widths),
        "naive_coverage": statistics.mean(naive_inside),
        "naive_width": statistics.median(naive_widths),
        "naive_as_is": statistics.mean(naive_near),
        "limit_width": statistics.median(limit_widths),
        "use_error": statistics.mean(errors),
        "use_error_max": max(errors),
        "naive_use_error": statistics.mean(naive_errors),
        "actual_over_predicted": statistics.median(ratios),
        "startup_s": statistics.median(o.whole.startup_s for o in outcomes),
        "active_s": statistics.median(o.whole.active_s for o in outcomes),
        "after_last_line_s": statistics.median(after_end_s),
    }


def show(found: Mapping[str, float]) -> None:
    """Print ours, the peer and the limit."""
    low, high = COVERAGE_ALLOWED
    print(f"{'':34s} {'ours':>6s} {'peer':>6s} {'limit':>6s}  allowed")
    print(
        f"{'share of runs in the band':34s} {found['band_coverage']:6.3f} {found['naive_coverage']:6.3f} "
        f"{'':6s}  {low:g} to {high:g}"
    )
    print(
        f"{'width of the band over its median':34s} {found['band_width']:6.3f} {found['naive_width']:6.3f} "
        f"{found['limit_width']:6.3f}  <= {WIDTH_ALLOWED:g}"
    )
    print(
        f"{'error of the use, mean':34s} {found['use_error']:6.3f} {found['naive_use_error']:6.3f} "
        f"{'':6s}  <= {USE_ERROR_ALLOWED:g}"
    )
    print(f"peer within {NEAR:.0%} without a band: {found['naive_as_is']:.0%} of the runs")
    print(
        f"medians: {found['active_s']:.1f} s a run, {found['startup_s']:.1f} s of it before the first work; "
        f"actual over predicted {found['actual_over_predicted']:.3f}; the command ends "
        f"{found['after_last_line_s']:.1f} s after the ledger's last line"
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--runs", type=int, default=60, metavar="N", help="runs that count (default: 60)")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    args = parser.parse_args(argv)
    load_before = os.getloadavg()[0]
    rng = random.Random(args.seed)
    first = ["ensemble", "paramserver"] * LEAST_RUNS
    counted = ["paramserver" if n % JOBS_EVERY == 0 else "ensemble" for n in range(args.runs)]
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="bench_time_band_history_") as folder:
        history = Path(folder) / "runs.jsonl"
        os.environ["HPCBAL_CALIBRATION"] = str(history)  # of the plans
        for number, kind in enumerate([*first, *counted]):
            outcomes.append(run_for_real(kind, rng, history))
            last = outcomes[-1]
            band = last.planned.band
            text = f"{number:3d} {kind:11s} {last.whole.active_s:5.1f} s, "
            text += f"band {band.low_s:5.1f} to {band.high_s:5.1f}{'' if last.is_inside else ' *'}"
            print(text, file=sys.stderr, flush=True)
    found = figures(outcomes, LEAST_RUNS)
    show(found)
    write_figures(args.json, {**found, "load_before": load_before, "load_after": os.getloadavg()[0]})


if __name__ == "__main__":
    main()
