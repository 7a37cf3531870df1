"""Time the verbs of the login node on large configurations, beside a limit for each.

    python bench/bench_large_configs.py --json large.json
    python bench/bench_large_configs.py --divide 100          # a quick look, with a hundredth of every size

- `validate_5000_s`: `validate` of 5,000 listed DNNs with their rates.
- `validate_unknown_100k_s`: `validate` of a file with 100,000 unknown keys, all different.
- `sweep_100k_s`: `validate` of one sweep that makes 100,000 DNNs, the most that a sweep may make.
- `plan_5000_s`: `plan` of the 5,000 DNNs on 64 GPUs, with the forecast of the run.
- `simulate_1000_s`: `simulate` of 1,000 DNNs on 64 GPUs, with its defaults: the global schedule beside the
  independent one, five seeds.

The JSON holds the minimum wall time of each, its CPU time as `..._cpu_s`, and its limit as `..._limit_s`. On
a busy machine only CPU times are comparable; the verbs use one core.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_startup import cpu_of_children_s
from support.provenance import provenance
from support.starting import environment

NUM_GPUS = 64
GPUS_PER_NODE = 4
MEAN_EPOCHS, DEVIATION_EPOCHS = 15.6, 1.56  # as in the preset of the FLEET paper
DEFAULTS = """\
name: large
data: {dataset: "hpcbal.data:digits"}
defaults:
  optimizer: {name: sgd, learning_rate: 0.1}
  batch_size: 32
  stop: {max_epochs: 15}
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One command on one file.

    Attributes:
        key: key of its seconds.
        arguments: verb and options, in front of and behind the file.
        text: the file.
        limit_s: seconds that it may take on an idle machine.
        exit_code: the code with which it must end.
    """

    key: str
    arguments: tuple[str, tuple[str, ...]]
    text: str
    limit_s: float
    exit_code: int = 0


def listed(num_dnns: int, seed: int = 0) -> str:
    """DNNs one by one, with rates in the ranges of [FLEET] App. B: 21 to 176 samples/s on one GPU."""
    rng = random.Random(seed)
    rates, dnns = [], []
    for i in range(num_dnns):
        single, epochs = rng.uniform(21.0, 176.0), max(1, round(rng.gauss(MEAN_EPOCHS, DEVIATION_EPOCHS)))
        by_count = ", ".join(f"{m}: {single * m * 0.97 ** (m - 1):.3f}" for m in (1, 2, 4))
        rates.append(f"    d{i:05d}: {{{by_count}}}\n")
        dnns.append(
            f'  - {{name: d{i:05d}, model: "hpcbal.models:softmax", stop: {{max_epochs: {epochs}}}}}\n'
        )
    head = f"{DEFAULTS}slots: {{per_node: {GPUS_PER_NODE}}}\nbackend:\n  name: emulated\n  rates:\n"
    return f"{head}{''.join(rates)}dnns:\n{''.join(dnns)}"


def unknown_keys(number: int) -> str:
    """A file with one DNN and `number` keys that do not exist."""
    keys = "".join(f"key{i}: {i}\n" for i in range(number))
    return f'{DEFAULTS}dnns: [{{name: a, model: "hpcbal.models:softmax"}}]\n{keys}'


def sweep(number: int) -> str:
    """One sweep that makes about `number` DNNs from three axes."""
    side = max(1, round((number / 40) ** 0.5))
    rates = ", ".join(f"{(i + 1) / 1000}" for i in range(side))
    features = ", ".join(str(i + 1) for i in range(side))
    sizes = ", ".join(str(i + 8) for i in range(40))
    return (
        f"{DEFAULTS}sweeps:\n"
        '  - name: "s-{learning_rate}-{batch_size}-{max_features}"\n'
        '    model: "hpcbal.models:softmax"\n'
        f"    grid: {{optimizer.learning_rate: [{rates}], batch_size: [{sizes}],\n"
        f"           args.max_features: [{features}]}}\n"
    )


def cases(divide: int) -> list[Case]:
    """All cases, with sizes divided by `divide`."""
    validate = ("validate", ())
    gpus = ("--gpus", str(NUM_GPUS))
    many = listed(max(1, 5000 // divide))
    return [
        Case("validate_5000_s", validate, many, 2.0),
        Case("validate_unknown_100k_s", validate, unknown_keys(max(1, 100_000 // divide)), 5.0, exit_code=2),
        Case("sweep_100k_s", validate, sweep(max(1, 100_000 // divide)), 5.0),
        Case("plan_5000_s", ("plan", gpus), many, 10.0),
        Case("simulate_1000_s", ("simulate", gpus), listed(max(1, 1000 // divide)), 10.0),
    ]


def measure(case: Case, folder: Path, repeat: int) -> dict[str, float]:
    """Minimum wall and CPU time of `repeat` runs, and the most memory that any command took so far.

    Raises:
        SystemExit: the command ended with another code than it must.
    """
    path = folder / "large.yaml"
    path.write_text(case.text, encoding="utf-8")
    verb, options = case.arguments
    command = [sys.executable, "-m", "hpcbal", verb, str(path), *options]
    wall_s, cpu_s = float("inf"), float("inf")
    for _ in range(repeat):
        used_s, start = cpu_of_children_s(), time.perf_counter()
        done = subprocess.run(
            command, cwd=folder, env=environment(), capture_output=True, text=True, check=False
        )
        wall_s = min(wall_s, time.perf_counter() - start)
        cpu_s = min(cpu_s, cpu_of_children_s() - used_s)
        if done.returncode != case.exit_code:
            raise SystemExit(f"{done.stderr}\n{case.key}: code {done.returncode}, expected {case.exit_code}")
    name = case.key.removesuffix("_s")
    return {case.key: wall_s, f"{name}_cpu_s": cpu_s, f"{name}_limit_s": case.limit_s}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--repeat", type=int, default=2, help="runs per case; the minimum counts (default: 2)"
    )
    parser.add_argument(
        "--divide", type=int, default=1, metavar="N", help="divide all sizes by N (default: 1)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as one flat object")
    args = parser.parse_args(argv)
    figures: dict[str, object] = {}
    print(f"{'what':<24} {'seconds':>8} {'CPU s':>8} {'limit':>6}")
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(args.divide):
            row = measure(case, Path(folder), args.repeat)
            seconds, cpu_s, limit_s = row.values()
            print(f"{case.key:<24} {seconds:8.2f} {cpu_s:8.2f} {limit_s:6.1f}", flush=True)
            figures |= row
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    figures |= {"max_resident_bytes": most, "divided_by": args.divide, "load": os.getloadavg()[0]}
    print(f"most memory of one command: {most / 2**20:.0f} MiB")
    if args.json:
        args.json.write_text(json.dumps(figures | provenance(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
