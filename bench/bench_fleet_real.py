"""FLEET and its rivals in real runs on emulated accelerators, each compared with its simulation.

24 DNNs of the preset `fleet-summitdev` train on 16 emulated accelerators (4 nodes of 4: one machine cut into
four), sped up so that a run takes one to three minutes. Each paradigm is a real `hpcbal run`: MPI ranks, the
shared ring (or, with `independent`, a stream for each DNN), gradients summed in trainer groups, checkpoints.
Only the accelerator is emulated: a step takes the time that follows from the preset's rates. Each run is
simulated from rates, epochs and the ring's size alone; nothing is fitted to the real run.

    python bench/bench_fleet_real.py --json out.json

The JSON holds one flat object. `sim_error_max`: the largest |simulated / real - 1| of the makespans (at most
0.05). `global_vs_independent`, `global_vs_homogeneous`: how many times faster FLEET-G was in the real runs.
The peers are the other paradigms; the limit is the lower bound max(total work / slots, longest DNN).
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.figures import parser_of, write_figures
from support.starting import train

from hpcbal.cluster.layout import Cluster
from hpcbal.control.paradigms import PARADIGM_NAMES
from hpcbal.control.progress import ScheduleSettings
from hpcbal.events.ensemble import Delta
from hpcbal.policies.rates import RateTable
from hpcbal.simulator.pass_model import PassModel
from hpcbal.simulator.preset import load_preset
from hpcbal.simulator.record import SimulatedRun
from hpcbal.simulator.run import simulate
from hpcbal.simulator.scenario import Workload

PRESET = "fleet-summitdev"
NUM_NODES, SLOTS_PER_NODE = 4, 4
RANKS_PER_NODE = (
    SLOTS_PER_NODE + 2
)  # first node: scheduler and one preprocessor; other nodes: two preprocessors
NUM_TRAIN, NUM_VALIDATION, BATCH = 480, 48, 32
BLOCK_SAMPLES = 16
RING_BLOCKS = 8
FEATURES = 8
DELTA, ALPHA = "25%", 0.8
ERROR_ALLOWED = 0.05


def scaled(num_dnns: int, seed: int, mean_run_s: float) -> Workload:
    """The first DNNs of the preset, sped up so that their mean time on one slot is `mean_run_s`."""
    whole = load_preset(PRESET).draw(seed)
    specs = whole.specs[:num_dnns]
    epochs = {spec.dnn_id: whole.epochs[spec.dnn_id] for spec in specs}
    samples = NUM_TRAIN + NUM_VALIDATION / 3.0
    lengths = [epochs[d] * samples / whole.rates.rate(d, 1) for d in epochs]
    factor = statistics.mean(lengths) / mean_run_s
    rates = {
        d: {
            m: rate * factor for m, rate in whole.rates.measured[d].items() if m <= NUM_NODES * SLOTS_PER_NODE
        }
        for d in epochs
    }
    specs = tuple(replace(spec, batch_size=BATCH) for spec in specs)
    return Workload(specs, RateTable(rates, SLOTS_PER_NODE), epochs)


def config_of(workload: Workload, paradigm: str, output: Path) -> dict[str, Any]:
    """The run's configuration."""
    return {
        "name": f"fleet-real-{paradigm}",
        "seed": 0,
        "data": {
            "dataset": "workloads.fleet_real:points",
            "args": {"num_samples": NUM_TRAIN + NUM_VALIDATION, "num_features": FEATURES},
            "validation_fraction": NUM_VALIDATION / (NUM_TRAIN + NUM_VALIDATION),
        },
        "dnns": [
            {
                "name": spec.dnn_id,
                "model": "hpcbal.models:softmax",
                "batch_size": BATCH,
                "optimizer": {"name": "sgd", "learning_rate": 0.001},
                "stop": {"max_epochs": workload.epochs[spec.dnn_id]},
            }
            for spec in workload.specs
        ],
        "backend": {
            "name": "emulated",
            "rates": {d: dict(by_count) for d, by_count in workload.rates.measured.items()},
        },
        "slots": {"per_node": SLOTS_PER_NODE, "preprocessors_per_node": 1, "ranks_per_node": RANKS_PER_NODE},
        "schedule": {"paradigm": paradigm, "delta": DELTA, "alpha": ALPHA},
        "dataplane": {"block_samples": BLOCK_SAMPLES, "ring_bytes": ring_bytes()},
        "output": {"dir": str(output)},
    }


def ring_bytes() -> int:
    """Bytes of a ring of RING_BLOCKS blocks."""
    from hpcbal.data.spec import LabelSpec, SampleSpec
    from hpcbal.dataplane.stream import StreamSpec

    sample = SampleSpec.of((FEATURES,), "float32")
    spec = StreamSpec(NUM_TRAIN, NUM_TRAIN + NUM_VALIDATION, BLOCK_SAMPLES, sample, LabelSpec(), 2**30)
    return RING_BLOCKS * spec.cell_bytes


def run_for_real(config: dict[str, Any], folder: Path) -> float:
    """Start the run with all its ranks; returns the seconds from its ledger's first to its last line."""
    ledger = train(config, folder, NUM_NODES * RANKS_PER_NODE)
    return ledger[-1].unix_s - ledger[0].unix_s


def simulated(workload: Workload, paradigm: str) -> SimulatedRun:
    """The same run in virtual time, where only steps take time."""
    settings = ScheduleSettings(
        num_positions=NUM_TRAIN + NUM_VALIDATION,
        delta=Delta(relative=float(DELTA.rstrip("%")) / 100.0),
        alpha=ALPHA,
        profile=False,
        max_preprocessors=2 * NUM_NODES - 1,
        paradigm=paradigm,
        seed=0,
    )
    passes = PassModel(NUM_TRAIN, NUM_VALIDATION, ring_samples=RING_BLOCKS * BLOCK_SAMPLES)
    cluster = Cluster.uniform(NUM_NODES, SLOTS_PER_NODE)
    return simulate(workload.specs, cluster, settings, workload.rates, passes)


def median_by_paradigm(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Medians over the repetitions."""
    return {paradigm: statistics.median(series) for paradigm, series in values.items()}


def report(real_s: Mapping[str, float], virtual_s: Mapping[str, float], bound_s: float) -> dict[str, Any]:
    """Print the table; returns the flat object."""
    print(
        f"{'paradigm':<14} {'real':>8} {'simulated':>10} {'error':>7} {'x bound':>8} {'vs independent':>15}"
    )
    result: dict[str, Any] = {}
    for paradigm in PARADIGM_NAMES:
        real, virtual = real_s[paradigm], virtual_s[paradigm]
        error, speedup = virtual / real - 1.0, real_s["independent"] / real
        print(
            f"{paradigm:<14} {real:>6.1f} s {virtual:>8.1f} s {error:>+7.1%} {real / bound_s:>8.2f} "
            f"{speedup:>15.2f}"
        )
        result[f"real_{paradigm}_s"], result[f"simulated_{paradigm}_s"] = real, virtual
        result[f"sim_error_{paradigm}"] = abs(error)
    result["sim_error_max"] = max(result[f"sim_error_{paradigm}"] for paradigm in PARADIGM_NAMES)
    for rival in ("independent", "homogeneous", "local"):
        result[f"global_vs_{rival}"] = real_s[rival] / real_s["global"]
        result[f"simulated_global_vs_{rival}"] = virtual_s[rival] / virtual_s["global"]
    print(f"lower bound {bound_s:.1f} s")
    print(f"sim_error_max {result['sim_error_max']:.3f} (at most {ERROR_ALLOWED})")
    print(f"global_vs_independent {result['global_vs_independent']:.2f}")
    print(f"global_vs_homogeneous {result['global_vs_homogeneous']:.2f}")
    return result | {"lower_bound_s": bound_s}


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--dnns", type=int, default=24)
    parser.add_argument(
        "--seed", type=int, default=0, help="of the random numbers of epochs that the DNNs need"
    )
    parser.add_argument(
        "--mean-run-s", type=float, default=40.0, help="mean seconds of a DNN alone on one accelerator"
    )
    parser.add_argument("--repeat", type=int, default=1, help="real runs of each paradigm; the median counts")
    args = parser.parse_args(argv)
    load_before = os.getloadavg()[0]
    workload = scaled(args.dnns, args.seed, args.mean_run_s)
    runs = {paradigm: simulated(workload, paradigm) for paradigm in PARADIGM_NAMES}
    real: dict[str, list[float]] = {paradigm: [] for paradigm in PARADIGM_NAMES}
    for _ in range(args.repeat):
        for paradigm in PARADIGM_NAMES:
            with tempfile.TemporaryDirectory() as folder:
                config = config_of(workload, paradigm, Path(folder, "out"))
                real[paradigm].append(run_for_real(config, Path(folder)))
    virtual_s = {paradigm: run.makespan_s for paradigm, run in runs.items()}
    result = report(median_by_paradigm(real), virtual_s, runs["global"].lower_bound_s)
    facts = {"num_dnns": args.dnns, "num_slots": NUM_NODES * SLOTS_PER_NODE, "load_before": load_before}
    write_figures(args.json, result | facts)


if __name__ == "__main__":
    main()
