"""Ranks of record_contention.py: train with TensorFlow, and record every worker in every iteration.

record_contention.py starts them under mpirun, one rank per worker. Each rank pins itself to its core, trains
with its own fixed share of the batch, and meets the others in the sum of the gradients. Rank 0 writes the
file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from mpi4py import MPI

TELL_EVERY = 200
WARM_UP = 10  # iterations that are not recorded, because models are traced in them
SAMPLES, SECONDS, CPU, MEMORY = range(4)


def record(
    comm: MPI.Intracomm, cores: Sequence[int], shares: Sequence[int], iterations: int, model: dict[str, Any]
) -> npt.NDArray[np.float64]:
    """Train; returns the records of all workers, shape (iterations, 4, workers); collective.

    Args:
        cores, shares: core and number of samples of each rank.
        model: arguments of `workloads.lbbsp.images` (pixels) and `workloads.lbbsp.convolutions` (channels).
    """
    from workloads.lbbsp import images

    from hpcbal.config.schema.dnn import DnnConfig, StopConfig
    from hpcbal.config.schema.optimizer import OptimizerConfig
    from hpcbal.data.spec import SampleSpec
    from hpcbal.dataplane.reader import Batch
    from hpcbal.telemetry.host.resource_use import ResourceProbe
    from hpcbal.training.mpi_collective import MpiCollective
    from hpcbal.training.tensorflow_backend import TensorFlowBackend
    from hpcbal.training.tensorflow_setup import setup_tensorflow

    own = shares[comm.rank]
    device = setup_tensorflow(comm.rank, comm.size, [frozenset([core]) for core in cores])
    data = images(own, model["pixels"])
    x = np.stack([data.read(i)[0] for i in range(own)])
    batch = Batch(np.arange(own), x, np.arange(own) % 10)
    dnn = DnnConfig(
        name="convolutions",
        model="workloads.lbbsp:convolutions",
        args={"channels": model["channels"]},
        optimizer=OptimizerConfig(name="sgd", learning_rate=0.01),
        batch_size=sum(shares),
        stop=StopConfig(max_epochs=1),
    )
    sample = SampleSpec.of(x.shape[1:], "float32")
    replica = TensorFlowBackend(device).build(dnn, sample, 10, seed=0)
    collective, probe = MpiCollective(comm), ResourceProbe()
    noted = np.zeros((iterations, 4, comm.size))
    for k in range(-WARM_UP, iterations):
        began = time.monotonic()
        contribution = replica.compute(batch, sum(shares))
        rows = np.zeros((4, comm.size))
        used = probe.read()
        rows[:, comm.rank] = own, time.monotonic() - began, used.cpu_share or 0.0, used.memory_share or 0.0
        tensors, summed = collective.sum(contribution.tensors, rows.reshape(-1))
        replica.apply(tensors)
        if k >= 0:
            noted[k] = summed.reshape(rows.shape)
        if comm.rank == 0 and k > 0 and k % TELL_EVERY == 0:
            print(f"{k} of {iterations} iterations", file=sys.stderr, flush=True)
    collective.close()
    probe.close()
    return noted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cores", type=int, nargs="+", required=True)
    parser.add_argument("--shares", type=int, nargs="+", required=True)
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--model", type=json.loads, required=True)
    parser.add_argument("--about", type=json.loads, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    os.sched_setaffinity(0, {args.cores[comm.rank]})
    began = time.time()
    noted = record(comm, args.cores, args.shares, args.iterations, args.model)
    if comm.rank == 0:
        from contention.recording import Recording

        about = {
            **args.about,
            "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
            "seconds": round(time.time() - began, 1),
        }
        columns = np.ascontiguousarray(noted.transpose(1, 2, 0))  # (4, workers, iterations)
        processing_s, cpu, memory = columns[SECONDS:]
        Recording(columns[SAMPLES].astype(np.int64), processing_s, cpu, memory, about).save(args.out)


if __name__ == "__main__":
    main()
