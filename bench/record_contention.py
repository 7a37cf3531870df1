"""Record real TensorFlow workers under contention that comes and goes, to try speed predictors on.

Three workers train together on two cores: one alone on the first, two that share the second, so their speeds
are as 1 : 1/2 : 1/2. Their shares of the batch keep that proportion. Meanwhile burners (burn_cores.py) come
and go on both cores, as many as there are workers, so a burst halves a worker's speed. The recording has, for
each iteration and worker, samples, seconds until it arrived at the collective, and the shares of CPU and
memory as a run measures them.

    python bench/record_contention.py --out tests/data/contention.npz

takes 5 to 6 minutes and replaces the file. bench_lbbsp_cpu.py replays it. Close other programs first.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from contention.burn_cores import Load, burning
from contention.recording import load_recording
from support.provenance import provenance
from support.starting import MPI_ENVIRONMENT, environment, mpirun

HERE = Path(__file__).resolve().parent
MODEL = {"pixels": 24, "channels": 32}
MEBIBYTES = 256  # of each burner


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    first, *others = sorted(os.sched_getaffinity(0))
    second = others[0] if others else first
    parser.add_argument(
        "--cores", type=int, nargs="+", default=[first, second, second], help="core of each worker"
    )
    parser.add_argument("--shares", type=int, nargs="+", default=[120, 60, 60], help="samples of each worker")
    parser.add_argument("--iterations", type=int, default=1550)
    parser.add_argument(
        "--bursts",
        type=float,
        nargs=2,
        default=[1.5, 6.0],
        metavar="S",
        help="shortest and longest burst, in seconds; pauses alike",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the burners' schedule")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="an .npz file")
    args = parser.parse_args(argv)
    if len(args.cores) != len(args.shares):
        parser.error(
            f"got {len(args.cores)} cores for {len(args.shares)} shares; give one of each per worker"
        )
    burner = Load(on_s=tuple(args.bursts), off_s=tuple(args.bursts), mebibytes=MEBIBYTES)
    about = {
        "what": "num_samples, processing_s, cpu, memory of TensorFlow workers: (workers, iterations)",
        "how": "bench/record_contention.py",
        "cores": args.cores,
        "model": MODEL,
        "burner": dataclasses.asdict(burner) | {"seed": args.seed},
        "load_before": os.getloadavg()[0],
        **provenance(),
    }
    command = [*mpirun(), "-n", str(len(args.cores)), sys.executable, str(HERE / "ranks/contention.py")]
    command += ["--cores", *map(str, args.cores), "--shares", *map(str, args.shares)]
    command += ["--iterations", str(args.iterations), "--model", json.dumps(MODEL)]
    command += ["--about", json.dumps(about), "--out", str(args.out)]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with burning(args.cores, burner, args.seed):
        subprocess.run(command, check=True, env=environment(**MPI_ENVIRONMENT))
    recording = load_recording(args.out)
    speeds = recording.traces().speeds
    print("worker  samples/s: 5 %, median, 95 %    seconds    CPU share: least, mean")
    for worker, row in enumerate(speeds):
        low, middle, high = np.percentile(row, [5, 50, 95])
        cpu = recording.cpu[worker]
        print(
            f"{worker:>6} {low:15.0f} {middle:7.0f} {high:5.0f} "
            f"{np.median(recording.processing_s[worker]):10.3f} {cpu.min():17.2f} {cpu.mean():5.2f}"
        )
    print(f"{args.out}: {speeds.shape[1] + 1} iterations, {args.out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
