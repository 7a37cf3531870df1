"""Time our weighted sum of a ResNet-50's gradients, compared with plain `hvd.grouped_allreduce`.

For information it also times the sum of such tensors of PyTorch by torch.distributed with gloo.

The bench starts itself under mpirun. The peer is Horovod on the same tensors, which is also the limit. Ours
is all that a trainer does between `compute` and `apply`: status vector, conversion, the fused all-reduce, and
the decision what to do next. Rounds of all ways alternate, so that a noisy machine affects all of them
equally. Ratios are medians over the rounds; each compares two times of the same round.

Example:
    $ python bench/bench_allreduce.py --num-ranks 2 --json allreduce.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from support.figures import parser_of, write_figures
from support.starting import MPI_ENVIRONMENT, environment, mpirun

LAUNCHED = "HPCBAL_BENCH_RANK"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--num-ranks", type=int, nargs="+", default=[2], help="group sizes to time")
    parser.add_argument("--rounds", type=int, default=40, help="timed rounds per way")
    parser.add_argument("--warmup", type=int, default=3, help="untimed rounds before them")
    return parser.parse_args()


def main() -> None:
    """Start one mpirun per group size, print a table, write the JSON of the first size."""
    args = arguments()
    if LAUNCHED in os.environ:
        measure(args)
        return
    print("ranks  parameters  horovod_ms  ours_ms  mpi_ms  torch_ms  vs_horovod  mpi_vs_horovod")
    results = [launch(num_ranks, args) for num_ranks in args.num_ranks]
    for row in results:
        print(
            f"{row['num_ranks']:5d}  {row['num_parameters']:10d}  {1e3 * row['horovod_s']:10.1f}  "
            f"{1e3 * row['ours_s']:7.1f}  {1e3 * row['mpi_s']:6.1f}  {1e3 * row['torch_s']:8.1f}  "
            f"{row['vs_horovod']:10.3f}  {row['mpi_vs_horovod']:14.3f}"
        )
    flat = dict(results[0])
    for row in results[1:]:
        flat |= {f"{key}_{row['num_ranks']}_ranks": value for key, value in row.items()}
    write_figures(args.json, flat)


def launch(num_ranks: int, args: argparse.Namespace) -> dict[str, Any]:
    """Run this file on `num_ranks` ranks; returns the object that rank 0 prints."""
    command = [*mpirun(), "-n", str(num_ranks), sys.executable, __file__]
    command += ["--rounds", str(args.rounds), "--warmup", str(args.warmup)]
    env = environment(**{LAUNCHED: "1"}, **MPI_ENVIRONMENT)
    run = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False)
    if run.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {run.returncode}")
    row: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return row


def measure(args: argparse.Namespace) -> None:
    """On each rank: time the ways in turns."""
    from mpi4py import MPI

    from hpcbal.cluster.cgroup import Cores
    from hpcbal.training.backend import Contribution, Sums
    from hpcbal.training.collectives import COLLECTIVES, ChosenCollective, open_groups
    from hpcbal.training.devices import LocalSlots
    from hpcbal.training.keras.tensorflow_backend import setup_tensorflow

    comm = MPI.COMM_WORLD
    setup_tensorflow(LocalSlots(comm.rank, (Cores.of_this_process(),) * comm.size))
    group = tuple(range(comm.size))
    horovod, mpi = COLLECTIVES["horovod"](comm), COLLECTIVES["mpi"](comm)
    horovod.open([group])
    mpi.open([group])
    by_torch = open_groups(ChosenCollective("mpi", "a bench", "gloo"), comm)
    by_torch.open([group])

    import horovod.tensorflow as hvd
    import tensorflow as tf
    import torch

    from hpcbal.models import resnet
    from hpcbal.training.step import reduce_step

    shapes = [tuple(v.shape) for v in resnet((224, 224, 3), 1000, depth=50).trainable_variables]
    tensors = [tf.random.normal(shape) for shape in shapes]
    contribution = Contribution(tensors, Sums(1.0, 1))
    of_torch = Contribution([torch.randn(shape) for shape in shapes], Sums(1.0, 1))

    def plain() -> Sequence[Any]:
        summed: Sequence[Any] = hvd.grouped_allreduce(tensors, op=hvd.Sum)
        return summed

    def ours() -> Sequence[Any]:
        return reduce_step(horovod.collective_of(group), contribution)[0]

    def over_mpi() -> Sequence[Any]:
        return reduce_step(mpi.collective_of(group), contribution)[0]

    def over_torch() -> Sequence[Any]:
        return reduce_step(by_torch.collective_of(group), of_torch)[0]

    seconds = timed([plain, ours, over_mpi, over_torch], args, comm.Barrier)
    if comm.rank == 0:
        horovod_s, ours_s, mpi_s, torch_s = (float(np.median(column)) for column in seconds)
        row = {
            "num_ranks": comm.size,
            "num_parameters": sum(int(np.prod(shape)) for shape in shapes),
            "horovod_s": horovod_s,
            "ours_s": ours_s,
            "mpi_s": mpi_s,
            "torch_s": torch_s,
            "vs_horovod": float(np.median(np.divide(seconds[1], seconds[0]))),
            "mpi_vs_horovod": float(np.median(np.divide(seconds[2], seconds[0]))),
        }
        print(json.dumps(row), flush=True)
    by_torch.shutdown()
    mpi.shutdown()
    horovod.shutdown()


def timed(
    ways: Sequence[Callable[[], Sequence[Any]]], args: argparse.Namespace, barrier: Callable[[], None]
) -> list[list[float]]:
    """Seconds of each way and round; the order of the ways rotates from round to round."""
    seconds: list[list[float]] = [[] for _ in ways]
    for index in range(args.warmup + args.rounds):
        for turn in range(len(ways)):
            way = (index + turn) % len(ways)
            barrier()
            start = time.perf_counter()
            np.asarray(ways[way]()[-1])
            if index >= args.warmup:
                seconds[way].append(time.perf_counter() - start)
    return seconds


if __name__ == "__main__":
    main()
