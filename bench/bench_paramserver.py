"""Pulls, pushes and epochs of the parameter servers, beside plain MPI and one process.

    python bench/bench_paramserver.py --json paramserver.json

The bench starts itself under mpirun: rank 0 is the worker, the others are servers. Ways take turns, so that a
noisy machine affects all of them equally; ratios are medians over rounds of two times of the same round.

- pull: the worker has received a table that is spread over the servers. Peer: a request of one word to each
  server (`Isend`), which answers with as many bytes (`Isend`, `Irecv`).
- push: the servers have received an update of the table and added it to the values, and the worker knows.
  Peer: the same with `Isend` and `Irecv`, and `numpy.add` at the server, without which it is no update.
- epoch: an epoch of multinomial logistic regression in a run with one worker and one server. Peer: one
  process that does the same without servers.

A size is that of the message to each server.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from support.figures import parser_of, write_figures
from support.starting import HERE, MPI_ENVIRONMENT, environment, mpirun, train
from workloads import dense_classes

from hpcbal.paramserver.api.app import App
from hpcbal.paramserver.api.batch import Batch
from hpcbal.paramserver.api.update import Parameters, Table, Update, Updates
from hpcbal.telemetry.ledger.job_lines import JobEpochLine

LAUNCHED = "HPCBAL_BENCH_RANK"
COLUMNS = 64
BLOCKS_PER_SERVER = 4


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64 << 10, 4 << 20], help="bytes")
    parser.add_argument("--servers", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.05, help="of each way in a round, about")
    parser.add_argument("--only", choices=("transfers", "epoch"))
    return parser.parse_args()


def main() -> None:
    """Start the parts, print a table, write the JSON."""
    args = arguments()
    if LAUNCHED in os.environ:
        measure(args)
        return
    results: dict[str, Any] = {}
    if args.only in (None, "transfers"):
        results |= transfers(args)
    if args.only in (None, "epoch"):
        results |= epoch(max(3, args.rounds // 3))
        print(
            f"epoch of MLR: {results['epoch_ms']:.1f} ms with 1 worker and 1 server, "
            f"{results['epoch_alone_ms']:.1f} ms in one process: {results['engine_overhead']:.3f}"
        )
    write_figures(args.json, results)


def transfers(args: argparse.Namespace) -> dict[str, Any]:
    """Pulls and pushes with each number of servers."""
    results: dict[str, Any] = {}
    print("   way  servers      bytes   ours_us    mpi_us  of_mpi")
    for num_servers in args.servers:
        for row in launch(1 + num_servers, args):
            print(
                f"{row['way']:>6}  {num_servers:7d}  {row['bytes']:9d}  {row['ours_us']:8.1f}  "
                f"{row['mpi_us']:8.1f}  {row['of_mpi']:6.3f}"
            )
            name = f"{row['way']}_{row['bytes']}_{num_servers}"
            results |= {f"{key}_{name}": row[key] for key in ("ours_us", "mpi_us", "of_mpi")}
    results["of_mpi"] = min(value for key, value in results.items() if key.startswith("of_mpi_"))
    print(f"of_mpi: {results['of_mpi']:.3f}")
    return results


def launch(num_ranks: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Run this file on `num_ranks` ranks; returns the rows that rank 0 prints."""
    command = [*mpirun(), "-n", str(num_ranks), sys.executable, __file__]
    command += ["--rounds", str(args.rounds), "--seconds", str(args.seconds)]
    command += ["--sizes", *map(str, args.sizes)]
    env = environment(**{LAUNCHED: "1"}, OMP_NUM_THREADS="1", **MPI_ENVIRONMENT)
    run = subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False
    )
    if run.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {run.returncode}")
    rows: list[dict[str, Any]] = json.loads(run.stdout.splitlines()[-1])
    return rows


class Values(App):
    """One table, and no model."""

    def __init__(self, num_rows: int) -> None:
        self._table = Table("values", num_rows, COLUMNS)

    def tables(self) -> Sequence[Table]:
        return (self._table,)

    def compute(self, batch: Batch, parameters: Parameters) -> Updates:
        raise NotImplementedError

    def objective(self, batch: Batch, parameters: Parameters) -> Mapping[str, float]:
        raise NotImplementedError

    def metrics(self, sums: Mapping[str, float]) -> Mapping[str, float]:
        raise NotImplementedError


def measure(args: argparse.Namespace) -> None:
    """On each rank: pulls and pushes of all sizes; rank 0 prints the rows."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rows = [row for size in args.sizes for row in transfer(args, comm, size)]
    if comm.rank == 0:
        print(json.dumps(rows), flush=True)


def transfer(args: argparse.Namespace, comm: Any, size: int) -> list[dict[str, Any]]:
    """Pulls and pushes of `size` bytes to each server."""
    from mpi4py import MPI

    from hpcbal.comm.mpi import MpiChannel
    from hpcbal.paramserver.engine.buffers import Buffers
    from hpcbal.paramserver.engine.client import ParameterClient
    from hpcbal.paramserver.engine.mpi_transport import MpiTransport
    from hpcbal.paramserver.engine.reactor import Reactor
    from hpcbal.paramserver.engine.server import Server
    from hpcbal.paramserver.engine.wire import Wire
    from hpcbal.paramserver.store.layout import Layout, Ownership

    num_servers = comm.size - 1
    rows_each = size // (8 * COLUMNS)
    app = Values(rows_each * num_servers)
    layout = Layout(app.tables(), [BLOCKS_PER_SERVER * num_servers])
    owners = 1 + np.arange(layout.num_blocks) // BLOCKS_PER_SERVER
    plain = comm.Dup()
    transport = MpiTransport(comm.Dup())
    wire = Wire(transport)
    reactor = Reactor(transport, MpiChannel(comm.Dup()), lambda message: None)
    word, values = np.zeros(1, np.int64), np.zeros((rows_each, COLUMNS))
    server = client = None
    if comm.rank:
        server = Server(wire, app, layout.shape_of, Buffers())
        own = np.flatnonzero(owners == comm.rank)
        server.begin(own.tolist())
        start = layout.rows_span(int(own[0]))[0]
        for block in own.tolist():
            span = layout.rows_span(block)
            server.add(block, values[span[0] - start : span[1] - start])
    else:
        client = ParameterClient(wire, layout, Ownership(owners))
    wire.open()
    table = np.zeros((rows_each * num_servers, COLUMNS))
    received = np.zeros_like(values)
    parts = [table[i * rows_each : (i + 1) * rows_each] for i in range(num_servers)]
    words = [np.zeros(1, np.int64) for _ in range(num_servers)]
    ranks = range(1, comm.size)

    def serve(num_requests: int) -> None:
        assert server is not None
        server.load.requests = 0
        reactor.wait_until(lambda: server.load.requests == num_requests and not transport.num_active)

    def pull() -> None:
        assert client is not None
        started = client.start_pull({})
        reactor.wait_until(lambda: started.is_over)
        client.finish_pull(started)

    def push() -> None:
        assert client is not None
        reactor.wait_until(lambda: not client.num_unsent)
        client.push({"values": Update(table)}, _nothing)
        reactor.wait_until(lambda: not client.num_unapplied)

    def plain_pull() -> None:
        if comm.rank == 0:
            requests = [
                plain.Irecv(part, source=rank, tag=1) for rank, part in zip(ranks, parts, strict=True)
            ]
            requests += [plain.Isend(word, dest=rank, tag=2) for rank in ranks]
            MPI.Request.Waitall(requests)
        else:
            plain.Irecv(word, source=0, tag=2).Wait()
            plain.Isend(values, dest=0, tag=1).Wait()

    def plain_push() -> None:
        if comm.rank == 0:
            requests = [plain.Irecv(one, source=rank, tag=2) for rank, one in zip(ranks, words, strict=True)]
            requests += [plain.Isend(part, dest=rank, tag=1) for rank, part in zip(ranks, parts, strict=True)]
            MPI.Request.Waitall(requests)
        else:
            plain.Irecv(received, source=0, tag=1).Wait()
            np.add(values, received, out=values)
            plain.Isend(word, dest=0, tag=2).Wait()

    ways: dict[str, Callable[[int], None]] = {
        "pull": lambda count: _repeat(pull, count) if comm.rank == 0 else serve(count),
        "mpi_pull": lambda count: _repeat(plain_pull, count),
        "push": lambda count: _repeat(push, count) if comm.rank == 0 else serve(count),
        "mpi_push": lambda count: _repeat(plain_push, count),
    }
    seconds = timed(ways, args, comm)
    reactor.wait_until(lambda: not transport.num_active)
    transport.close()
    if comm.rank:
        return []
    rows = []
    for way in ("pull", "push"):
        ours, mpi = seconds[way], seconds[f"mpi_{way}"]
        rows.append(
            {
                "way": way,
                "bytes": size,
                "ours_us": 1e6 * statistics.median(ours),
                "mpi_us": 1e6 * statistics.median(mpi),
                "of_mpi": float(np.median(np.divide(mpi, ours))),
            }
        )
    return rows


def timed(
    ways: Mapping[str, Callable[[int], None]], args: argparse.Namespace, comm: Any
) -> dict[str, list[float]]:
    """Seconds of one exchange, by way and round; the order of the ways rotates from round to round."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    counts = {}
    for name, way in ways.items():
        comm.Barrier()
        start_s = time.perf_counter()
        way(10)
        counts[name] = comm.bcast(max(3, round(args.seconds / (time.perf_counter() - start_s) * 10)))
    for index in range(args.rounds):
        for turn in range(len(names)):
            name = names[(index + turn) % len(names)]
            comm.Barrier()
            start_s = time.perf_counter()
            ways[name](counts[name])
            seconds[name].append((time.perf_counter() - start_s) / counts[name])
    return seconds


def _repeat(exchange: Callable[[], None], count: int) -> None:
    for _ in range(count):
        exchange()


def _nothing() -> None:
    pass


def epoch(num_pairs: int) -> dict[str, float]:
    """Runs of one worker and one server, and the same without servers, in turns."""
    seconds: dict[str, list[float]] = {"ours": [], "alone": []}
    for _ in range(num_pairs):
        with tempfile.TemporaryDirectory() as name:
            config = {
                "kind": "paramserver",
                "output": {"dir": str(Path(name, "out"))},
                "app": "hpcbal.paramserver.apps:MLR",
                "args": {"learning_rate": dense_classes.LEARNING_RATE},
                "data": {"dataset": "workloads.dense_classes:samples"},
                "mini_batch": dense_classes.MINI_BATCH,
                "blocks": {"data": dense_classes.DATA_BLOCKS, "parameters": BLOCKS_PER_SERVER},
                "workers": 1,
                "servers": 1,
                "tune": {"enabled": False},
                "stop": {"max_epochs": dense_classes.EPOCHS},
            }
            ledger = train(config, Path(name), num_ranks=3)
        epochs = [entry.line for entry in ledger if isinstance(entry.line, JobEpochLine)]
        seconds["ours"] += [line.seconds for line in epochs[1:]]
        command = [sys.executable, str(HERE / "workloads" / "dense_classes.py")]
        env = environment(OMP_NUM_THREADS="1")
        alone = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
        seconds["alone"] += map(float, alone.stdout.split())
    ours, peer = (statistics.median(each) for each in seconds.values())
    return {"epoch_ms": 1e3 * ours, "epoch_alone_ms": 1e3 * peer, "engine_overhead": ours / peer}


if __name__ == "__main__":
    main()
