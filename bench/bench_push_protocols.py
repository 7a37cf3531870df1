"""What the protocol of a push costs over plain MPI, without the engine.

    python bench/bench_push_protocols.py --json push_protocols.json

Rank 0 pushes to each server, which adds what has come and acknowledges it. All ways do the same with the same
ranks, arrays and additions:

- plain: `Irecv`, `Isend` and a wait inside MPI, as the peer in `bench_paramserver.py`.
- header: the engine's protocol. Persistent requests that Python polls with `Testsome`; a server receives the
  payload after its header has come.
- ahead: the same without header; the receive of the payload is started before it comes.

The keys are times of `plain` over those of the other two: what an engine in Python could reach at most.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from support.provenance import provenance
from support.starting import MPI_ENVIRONMENT, environment, mpirun

LAUNCHED = "HPCBAL_BENCH_RANK"
HEADER_WORDS = 13
PAYLOAD, WORD, HEADER = 1, 2, 3
"""Tags."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=64 << 10, help="bytes to each server")
    parser.add_argument("--servers", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--pushes", type=int, default=400, help="of each way in a round")
    parser.add_argument("--json", type=Path, help="write one flat object here")
    return parser.parse_args()


def main() -> None:
    """Start the ranks, print a table, write the JSON."""
    args = arguments()
    if LAUNCHED in os.environ:
        measure(args)
        return
    results: dict[str, Any] = {}
    print("servers  plain_us  header_us  ahead_us  header_of_mpi  ahead_of_mpi")
    for num_servers in args.servers:
        row = launch(1 + num_servers, args)
        print(
            f"{num_servers:7d}  {row['plain_us']:8.1f}  {row['header_us']:9.1f}  {row['ahead_us']:8.1f}  "
            f"{row['header_of_mpi']:13.3f}  {row['ahead_of_mpi']:12.3f}"
        )
        results |= {f"{key}_{num_servers}": value for key, value in row.items()}
    if args.json:
        args.json.write_text(json.dumps(results | provenance(), indent=2) + "\n")


def launch(num_ranks: int, args: argparse.Namespace) -> dict[str, float]:
    """Run this file on `num_ranks` ranks; returns the object that rank 0 prints."""
    command = [*mpirun(), "-n", str(num_ranks), sys.executable, __file__]
    command += ["--size", str(args.size), "--rounds", str(args.rounds), "--pushes", str(args.pushes)]
    env = environment(**{LAUNCHED: "1"}, OMP_NUM_THREADS="1", **MPI_ENVIRONMENT)
    run = subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False
    )
    if run.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {run.returncode}")
    found: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return found


def measure(args: argparse.Namespace) -> None:
    """On each rank: time the ways in turn; rank 0 prints the result and checks the sums."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    values = np.zeros(args.size // 8)
    ways = worker(comm, args.size) if comm.rank == 0 else server(comm, values)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for index in range(1 + args.rounds):
        for name, push in ways.items():
            comm.Barrier()
            start_s = time.perf_counter()
            for _ in range(args.pushes):
                push()
            if index:  # the first round warms up
                seconds[name].append((time.perf_counter() - start_s) / args.pushes)
    num_pushes = (1 + args.rounds) * len(ways) * args.pushes
    if comm.rank and not (values == num_pushes).all():
        raise SystemExit(f"rank {comm.rank} has added {values[0]:g} pushes of {num_pushes}")
    comm.Barrier()
    if comm.rank == 0:
        found = {f"{name}_us": 1e6 * statistics.median(each) for name, each in seconds.items()}
        for name in ("header", "ahead"):
            found[f"{name}_of_mpi"] = float(np.median(np.divide(seconds["plain"], seconds[name])))
        print(json.dumps(found), flush=True)


def worker(comm: Any, size: int) -> dict[str, Callable[[], None]]:
    """The worker's part of a push, by way."""
    from mpi4py import MPI

    servers = range(1, comm.size)
    parts = [np.ones(size // 8) for _ in servers]
    words = [np.zeros(1, np.int64) for _ in servers]
    header = np.zeros(HEADER_WORDS, np.int64)
    replies = [comm.Recv_init(word, rank, WORD) for word, rank in zip(words, servers, strict=True)]
    headers = [comm.Send_init(header, rank, HEADER) for rank in servers]
    payloads = [comm.Send_init(part, rank, PAYLOAD) for part, rank in zip(parts, servers, strict=True)]

    def plain() -> None:
        requests = [comm.Irecv(word, rank, WORD) for word, rank in zip(words, servers, strict=True)]
        requests += [comm.Isend(part, rank, PAYLOAD) for part, rank in zip(parts, servers, strict=True)]
        MPI.Request.Waitall(requests)

    def with_header() -> None:
        start(replies)
        for pair in zip(headers, payloads, strict=True):
            start(list(pair))
        poll([*replies, *headers, *payloads])

    def ahead() -> None:
        start([*replies, *payloads])
        poll([*replies, *payloads])

    return {"plain": plain, "header": with_header, "ahead": ahead}


def server(comm: Any, values: np.ndarray[Any, Any]) -> dict[str, Callable[[], None]]:
    """A server's part of a push, by way; it is added to `values`."""
    from mpi4py import MPI

    received, word = np.zeros_like(values), np.zeros(1, np.int64)
    header = comm.Recv_init(np.zeros(HEADER_WORDS, np.int64), MPI.ANY_SOURCE, HEADER)
    payload, reply = comm.Recv_init(received, 0, PAYLOAD), comm.Send_init(word, 0, WORD)

    def plain() -> None:
        comm.Irecv(received, 0, PAYLOAD).Wait()
        np.add(values, received, out=values)
        comm.Isend(word, 0, WORD).Wait()

    def ahead() -> None:
        start([payload])
        poll([payload])
        np.add(values, received, out=values)
        start([reply])
        poll([reply])

    def with_header() -> None:
        start([header])
        poll([header])
        ahead()

    return {"plain": plain, "header": with_header, "ahead": ahead}


def start(requests: list[Any]) -> None:
    """Start persistent requests in order."""
    for request in requests:
        request.Start()


def poll(requests: list[Any]) -> None:
    """Test requests until all are done, as the engine's transport does."""
    from mpi4py import MPI

    left = list(requests)
    while left:
        for index in sorted(MPI.Request.Testsome(left) or (), reverse=True):
            left.pop(index)


if __name__ == "__main__":
    main()
