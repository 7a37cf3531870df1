"""The schedule that a run chooses by itself, against the best fixed one found afterwards.

Random ensembles: 4 to 64 slots, rates 1 to 16 times apart, lengths 1 to 8 times apart, scaling of 0.8 to 0.98
per added slot. Each is simulated with `schedule.paradigm: auto`, which chooses again before each round, and
under every fixed setting of a grid that is finer than the candidates. Four of the ensembles are also trained
for real on emulated accelerators: with auto, with `independent`, and with the fixed setting that is best in
the simulation.

    python bench/bench_auto.py --json out.json

The JSON holds one flat object:

- `auto_over_best_max` (at most 1.10): largest makespan of auto over that of the best fixed setting,
- `auto_over_independent_max` (at most 1.0): largest makespan of auto over that of `independent`; both over
  the simulated and the emulated runs. Where auto chooses `independent` itself, an emulated run would only
  compare a run with itself, so that is left out.
- `auto_decide_s` (at most 1): longest decision for 100 DNNs on 160 slots, of several ensembles.
- `auto_over_best_early_max`: for information, if DNNs converge after 50 to 100 % of their max_epochs, which
  auto cannot know and the best fixed setting is chosen afterwards with.
- `default_over_best_median`: the paradigm, delta and alpha of [FLEET] over the best fixed setting.

The peers are the fixed settings, those of [FLEET] among them, and in simulations a plain list scheduler
without this package's order: the longest DNN first, one slot each.
"""

from __future__ import annotations

import heapq
import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from support.figures import parser_of, write_figures
from support.starting import train

from hpcbal.control.paradigms import AUTO
from hpcbal.control.progress import ResumeState, ScheduleSettings
from hpcbal.control.schedules import PAPER_ALPHA, PAPER_DELTA, candidates
from hpcbal.events.ensemble import Delta, Schedule, StartGroup, StartRound
from hpcbal.events.members import DnnSpec, StopRule
from hpcbal.policies.rates import RateTable
from hpcbal.simulator.choosing import ASSUMED_COSTS, Outset, predict_schedules
from hpcbal.simulator.pass_model import PassModel
from hpcbal.simulator.run import simulate
from hpcbal.simulator.scenario import cluster_of
from hpcbal.telemetry.ledger.codec import Entry

NUM_ENSEMBLES, NUM_EMULATED, NUM_DECISIONS = 40, 4, 3
BEST_ALLOWED, INDEPENDENT_ALLOWED, DECIDE_ALLOWED_S = 1.10, 1.0, 1.0
BATCH = 64
PASSES = PassModel(num_train=20_000, num_validation=2_000, ring_samples=512)
DELTAS = (
    PAPER_DELTA,
    *(Delta(relative=percent / 100.0) for percent in (5, 10, 15, 20, 30, 40, 50, 65, 80, 100)),
)
ALPHAS = (0.4, 0.6, PAPER_ALPHA, 0.9, 1.0)
INDEPENDENT, PAPER = Schedule("independent"), Schedule("global", PAPER_DELTA, PAPER_ALPHA)

MOST_EMULATED_SLOTS = 8
EMULATED_S = 25.0
EMULATED_REPEATS = 2
EMULATED_BATCH = 400  # few steps, so that ranks that share two cores mostly sleep
EMULATED_PASSES = PassModel(num_train=1_600, num_validation=160, ring_samples=1_024)
FEATURES, BLOCK_SAMPLES = 8, 32


@dataclass(frozen=True, slots=True)
class Ensemble:
    """A random ensemble and its allocation."""

    specs: tuple[DnnSpec, ...]
    rates: RateTable
    num_slots: int
    slots_per_node: int
    passes: PassModel = PASSES

    def outset(self) -> Outset:
        """The beginning of a run in which everything may be chosen."""
        settings = ScheduleSettings(
            self.passes.num_positions, None, None, paradigm=AUTO, profile=False, checkpoint_every_pass=False
        )
        cluster = cluster_of(self.num_slots, self.slots_per_node)
        return Outset(self.specs, cluster, settings, self.rates, self.passes, ASSUMED_COSTS, ResumeState())


def draw(seed: int, num_dnns: int | None = None, num_slots: int | None = None) -> Ensemble:
    """The ensemble of a seed."""
    rng = np.random.default_rng(seed)
    slots_per_node = int(rng.choice([4, 8]))
    slots = num_slots or max(4, slots_per_node * round(4 * 16 ** rng.uniform() / slots_per_node))
    count = num_dnns or max(3, round(slots * 2 ** rng.uniform(-1.5, 1.0)))
    rate_span, length_span = 16 ** rng.uniform(), 8 ** rng.uniform()
    single = 100.0 * rate_span ** rng.uniform(size=count)
    kept = rng.uniform(0.8, 0.98, count)
    epochs = np.round(8 * length_span ** rng.uniform(size=count)).astype(int)
    names = [f"dnn-{i:03d}" for i in range(count)]
    most = min(slots, 2 * slots_per_node)
    rates = {
        name: {m: float(rate * m * share ** (m - 1)) for m in range(1, most + 1)}
        for name, rate, share in zip(names, single, kept, strict=True)
    }
    specs = tuple(
        DnnSpec(name, BATCH, StopRule(max_epochs=int(n))) for name, n in zip(names, epochs, strict=True)
    )
    return Ensemble(specs, RateTable(rates, slots_per_node), slots, slots_per_node)


def fixed_s(ensemble: Ensemble) -> dict[Schedule, float]:
    """Makespan of every fixed setting that can be the best, and of `independent` and [FLEET]'s."""
    outset = ensemble.outset()
    found: dict[Schedule, float] = {}
    for alpha in ALPHAS:
        settings = [
            schedule
            for delta in DELTAS
            for schedule in candidates(replace(outset.settings, delta=delta, alpha=alpha))
        ]
        for prediction in predict_schedules(outset, list(dict.fromkeys(settings))):
            if not prediction.is_cut:
                found[prediction.schedule] = prediction.remaining_s
    for schedule in (INDEPENDENT, PAPER):
        found[schedule] = predict_schedules(outset, [schedule])[0].remaining_s
    return found


def longest_first_s(ensemble: Ensemble) -> float:
    """Makespan if each slot takes the longest DNN that is left, with the costs of a round."""
    free = [0.0] * ensemble.num_slots
    times = (
        spec.stop.max_epochs * ensemble.passes.seconds(ensemble.rates.rate(spec.dnn_id, 1))
        for spec in ensemble.specs
    )
    for time_s in sorted(times, reverse=True):
        heapq.heapreplace(free, free[0] + ASSUMED_COSTS.form_s + time_s + ASSUMED_COSTS.checkpoint_s)
    return max(free)


def auto_s(ensemble: Ensemble, epochs: Mapping[str, int] | None = None) -> float:
    """Makespan of a run that chooses before each round."""
    outset = ensemble.outset()
    run = simulate(
        outset.specs,
        outset.cluster,
        outset.settings,
        outset.rates,
        outset.passes,
        costs=outset.costs,
        epochs=epochs,
    )
    return run.makespan_s


def early(ensemble: Ensemble, seed: int) -> dict[str, int]:
    """Epochs of DNNs that converge before their max_epochs."""
    rng = np.random.default_rng((seed, 1))
    return {
        spec.dnn_id: max(1, round(float(rng.uniform(0.5, 1.0)) * spec.stop.max_epochs))
        for spec in ensemble.specs
    }


def with_epochs(ensemble: Ensemble, epochs: Mapping[str, int]) -> Ensemble:
    """The same ensemble if these epochs were known."""
    specs = (replace(spec, stop=StopRule(max_epochs=epochs[spec.dnn_id])) for spec in ensemble.specs)
    return replace(ensemble, specs=tuple(specs))


# ---- real runs ---------------------------------------------------------------------------------


def sped_up(ensemble: Ensemble) -> Ensemble:
    """The ensemble with small passes, and with rates at which a run with auto takes `EMULATED_S`."""
    specs = tuple(replace(spec, batch_size=EMULATED_BATCH) for spec in ensemble.specs)
    small = replace(ensemble, specs=specs, passes=EMULATED_PASSES)
    factor = 1.0
    for _ in range(4):  # the costs of rounds stay what they are
        factor *= auto_s(_faster(small, factor)) / EMULATED_S
    return _faster(small, factor)


def _faster(ensemble: Ensemble, factor: float) -> Ensemble:
    rates = {d: {m: rate * factor for m, rate in row.items()} for d, row in ensemble.rates.measured.items()}
    return replace(ensemble, rates=RateTable(rates, ensemble.slots_per_node))


def config_of(ensemble: Ensemble, schedule: Schedule | None, output: Path) -> dict[str, Any]:
    """The configuration of a run; None: auto."""
    keys: dict[str, Any] = {}
    if schedule is not None:
        keys["paradigm"] = schedule.paradigm
        if schedule.delta is not None:
            delta = schedule.delta
            keys["delta"] = delta.absolute if delta.relative is None else f"{100.0 * delta.relative:g}%"
        if schedule.alpha is not None:
            keys["alpha"] = schedule.alpha
    num_train, num_validation = ensemble.passes.num_train, ensemble.passes.num_validation
    return {
        "name": "bench-auto",
        "data": {
            "dataset": "workloads.fleet_real:points",
            "args": {"num_samples": num_train + num_validation, "num_features": FEATURES},
            "validation_fraction": num_validation / (num_train + num_validation),
        },
        "dnns": [
            {
                "name": spec.dnn_id,
                "model": "hpcbal.models:softmax",
                "batch_size": spec.batch_size,
                "optimizer": {"name": "sgd", "learning_rate": 0.001},
                "stop": {"max_epochs": spec.stop.max_epochs},
            }
            for spec in ensemble.specs
        ],
        "backend": {"name": "emulated", "rates": {d: dict(r) for d, r in ensemble.rates.measured.items()}},
        "slots": {"per_node": ensemble.num_slots, "preprocessors_per_node": 1},
        "schedule": keys,
        "dataplane": {"block_samples": BLOCK_SAMPLES, "ring_bytes": "64KiB"},
        "checkpoint": {"interval_s": 3600.0},
        "output": {"dir": str(output)},
    }


def real_s(ensemble: Ensemble, schedule: Schedule | None) -> float:
    """Seconds of a real run from its first round on."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = train(config_of(ensemble, schedule, Path(folder, "out")), Path(folder))
    return ledger[-1].unix_s - _begin_s(ledger)


def _begin_s(ledger: Sequence[Entry]) -> float:
    started = (entry for entry in ledger if isinstance(entry.line, StartRound | StartGroup))
    return next(started).unix_s


def emulate(seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Real runs of these ensembles."""
    for seed in seeds:
        ensemble = sped_up(draw(seed))
        simulated = fixed_s(ensemble)
        best = min(simulated, key=lambda schedule: simulated[schedule])
        # In turns, and the fastest of each: other load on the machine only adds time.
        rivals = list(dict.fromkeys([None, best, INDEPENDENT]))
        runs = [[real_s(ensemble, rival) for rival in rivals] for _ in range(EMULATED_REPEATS)]
        fastest = dict(zip(rivals, map(min, zip(*runs, strict=True)), strict=True))
        auto, fixed, alone = fastest[None], fastest[best], fastest[INDEPENDENT]
        chosen = predict_schedules(ensemble.outset(), candidates(ensemble.outset().settings))
        stays_alone = min(chosen, key=lambda p: (p.is_cut, p.remaining_s)).schedule == INDEPENDENT
        print(
            f"emulated {seed:3d}  {ensemble.num_slots:3d} slots {len(ensemble.specs):4d} DNNs  "
            f"auto {auto:6.1f} s  best {fixed:6.1f} s ({best})  independent {alone:6.1f} s"
            + ("  (chosen: not compared)" if stays_alone else ""),
            flush=True,
        )
        yield {
            "best": auto / fixed,
            "independent": None if stays_alone else auto / alone,
            "predicted": auto_s(ensemble) / auto,
        }


# ---- all of it ---------------------------------------------------------------------------------


def decide_s(seed: int) -> float:
    """Seconds of the first decision for 100 DNNs on 160 slots; the best of three attempts."""
    outset = draw(seed, 100, 160).outset()
    times = []
    for _ in range(3):
        began = time.perf_counter()
        predict_schedules(outset, candidates(outset.settings))
        times.append(time.perf_counter() - began)
    return min(times)


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--ensembles", type=int, default=NUM_ENSEMBLES)
    parser.add_argument("--emulated", type=int, default=NUM_EMULATED, help="ensembles trained for real")
    args = parser.parse_args(argv)
    over_best, over_independent, over_early, paper_over_best = [], [], [], []
    small = []
    for seed in range(args.ensembles):
        ensemble = draw(seed)
        fixed = fixed_s(ensemble)
        best = min(fixed, key=lambda schedule: fixed[schedule])
        auto = auto_s(ensemble)
        epochs = early(ensemble, seed)
        over_best.append(auto / min(fixed[best], longest_first_s(ensemble)))
        over_independent.append(auto / fixed[INDEPENDENT])
        paper_over_best.append(fixed[PAPER] / fixed[best])
        over_early.append(auto_s(ensemble, epochs) / min(fixed_s(with_epochs(ensemble, epochs)).values()))
        if ensemble.num_slots <= MOST_EMULATED_SLOTS:
            small.append(seed)
        print(
            f"simulated {seed:2d}  {ensemble.num_slots:3d} slots {len(ensemble.specs):4d} DNNs  auto over "
            f"best {over_best[-1]:.3f} ({best})  over independent {over_independent[-1]:.3f}  [FLEET] over "
            f"best {paper_over_best[-1]:.2f}  early: {over_early[-1]:.3f}",
            flush=True,
        )
    real = list(emulate(small[: args.emulated]))
    decisions = [decide_s(1000 + seed) for seed in range(NUM_DECISIONS)]
    result = {
        "auto_over_best_max": max([*over_best, *(r["best"] for r in real)]),
        "auto_over_independent_max": max(
            [*over_independent, *(r["independent"] for r in real if r["independent"] is not None)]
        ),
        "auto_decide_s": max(decisions),
        "auto_over_best_simulated_max": max(over_best),
        "auto_over_best_simulated_median": statistics.median(over_best),
        "auto_over_independent_simulated_max": max(over_independent),
        "auto_over_independent_simulated_median": statistics.median(over_independent),
        "auto_over_best_emulated_max": max((r["best"] for r in real), default=math.nan),
        "auto_over_best_early_max": max(over_early),
        "auto_over_best_early_median": statistics.median(over_early),
        "default_over_best_median": statistics.median(paper_over_best),
        "default_over_best_max": max(paper_over_best),
        "num_ensembles": args.ensembles,
        "num_emulated": len(real),
    }
    print(f"auto_over_best_max {result['auto_over_best_max']:.3f} (at most {BEST_ALLOWED})")
    print(
        f"auto_over_independent_max {result['auto_over_independent_max']:.3f} (at most {INDEPENDENT_ALLOWED})"
    )
    print(f"auto_decide_s {result['auto_decide_s']:.2f} (at most {DECIDE_ALLOWED_S})")
    write_figures(args.json, result)


if __name__ == "__main__":
    main()
