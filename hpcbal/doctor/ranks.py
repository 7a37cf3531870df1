"""Measure what ranks do together: sums, shared memory, files, clocks, speed. All functions are collective."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import cast

from mpi4py import MPI

from hpcbal.cluster.cgroup import Cores
from hpcbal.cluster.devices import visible_gpus
from hpcbal.comm.collectives import patient_allgather, patient_barrier, patient_broadcast, patient_gather
from hpcbal.doctor import checks
from hpcbal.doctor.checks import Finding
from hpcbal.doctor.local import short_computation_s

SUM_BYTES = checks.MIB
NUM_SUMS = 3
NUM_PINGS = 5
FILE_S = 5.0
"""A shared file system shows another node's file by then."""
FIRST = 0

Stage = Callable[[str], None]
"""Is told what begins, so that somebody may watch how long it takes."""

_LEVELS = {
    MPI.THREAD_SINGLE: "single",
    MPI.THREAD_FUNNELED: "funneled",
    MPI.THREAD_SERIALIZED: "serialized",
    MPI.THREAD_MULTIPLE: "multiple",
}


def of_ranks(
    world: MPI.Intracomm, node: MPI.Intracomm, output: Path, launched_here: int | None, stage: Stage
) -> list[Finding]:
    """Return the findings of this rank; collective over `world`.

    Args:
        node: the ranks that share memory with this one.
        output: directory of the run, which need not exist.
        launched_here: ranks that the launcher has started on this node; None: it does not say.
        stage: is told what begins.
    """
    host, is_first = socket.gethostname(), node.rank == FIRST
    found: list[Finding] = []
    stage("gathering the ranks of a node")
    on_node = patient_allgather(node, (Cores.of_this_process(), visible_gpus()))
    hosts = patient_allgather(world, (host, is_first))
    if is_first:
        omp = os.environ.get("OMP_NUM_THREADS")
        found.append(checks.cores([cores for cores, _ in on_node], os.cpu_count() or 1, omp).on(host))
        found.append(checks.devices([gpus for _, gpus in on_node]).on(host))
    stage("the shared window of a node")
    share = _ranks_of_window(node)
    if is_first:
        found.append(checks.window(share, launched_here).on(host))
    stage("the all-reduce")
    if world.size > 1:
        found += _all_reduce(world)
    stage("the output directory, from all nodes")
    leaders = [rank for rank, (_, is_leader) in enumerate(hosts) if is_leader]
    if len(leaders) > 1:
        found += _shared_output(world, output, is_first, host)
    stage("the clocks")
    found += _clocks(world, leaders, hosts[world.rank][0])
    stage("the short computation")
    patient_barrier(world)
    seconds = short_computation_s() if is_first else None
    everyone = patient_gather(world, (host, seconds))
    if everyone is not None:
        found += checks.speeds([(name, s) for name, s in everyone if s is not None])
    return found


def library_and_level(
    mpi_library: str, world: MPI.Intracomm, num_nodes: int, launched_on: int | None
) -> Finding:
    """Judge the MPI library at hand, as `checks.mpi` does; not collective."""
    return checks.mpi(mpi_library, _LEVELS[MPI.Query_thread()], world.size, num_nodes, launched_on)


def _ranks_of_window(node: MPI.Intracomm) -> int:
    """How many ranks of the node read what the first one has written to a shared window."""
    window = MPI.Win.Allocate_shared(8 if node.rank == FIRST else 0, 1, comm=node)
    try:
        memory = window.Shared_query(FIRST)[0]
        window.Lock_all()
        if node.rank == FIRST:
            memory[0:8] = b"hpcbal\0\0"
        window.Sync()
        patient_barrier(node)
        window.Sync()
        sees = memory.tobytes()[0:8] == b"hpcbal\0\0"
        window.Unlock_all()
        return sum(patient_allgather(node, sees))
    finally:
        window.Free()


def _all_reduce(world: MPI.Intracomm) -> list[Finding]:
    best_s, is_right = float("inf"), True
    for _ in range(NUM_SUMS):
        mine = array("d", [float(world.rank)]) * (SUM_BYTES // 8)
        total = array("d", [0.0]) * len(mine)
        patient_barrier(world)
        began_s = time.perf_counter()
        world.Allreduce(mine, total)
        best_s = min(best_s, time.perf_counter() - began_s)
        wanted = world.size * (world.size - 1) / 2.0
        is_right = is_right and total[0] == total[-1] == wanted
    all_right = all(patient_allgather(world, is_right))
    if world.rank != FIRST:
        return []
    return [checks.collectives(world.size, SUM_BYTES, best_s, is_right=all_right)]


def _shared_output(world: MPI.Intracomm, output: Path, is_first: bool, host: str) -> list[Finding]:
    """The first rank makes and locks a file; the first rank of each other node looks for it."""
    at = output.absolute()
    while not at.is_dir() and at != at.parent:
        at = at.parent
    made = _locked_file(at) if world.rank == FIRST else None
    path = patient_broadcast(world, None if made is None else made.name)
    finding = None
    if path is not None and is_first and world.rank != FIRST:
        finding = _look(str(output), Path(path))
    patient_barrier(world)
    if made is not None:
        made.close()
    return [] if finding is None else [finding.on(host)]


def _locked_file(directory: Path) -> tempfile._TemporaryFileWrapper[bytes] | None:
    """Make a file, and lock it; None if that is impossible, which the check of the first node says itself."""
    try:
        made = tempfile.NamedTemporaryFile(prefix=".hpcbal-doctor-", dir=directory)  # noqa: SIM115 - closed later
        fcntl.flock(made.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return None
    return made


def _look(output: str, path: Path) -> Finding | None:
    end_s = time.monotonic() + FILE_S
    while not path.exists():
        if time.monotonic() > end_s:
            return checks.shared_output(output, is_seen=False, is_locked=True)
        time.sleep(0.05)
    try:
        with path.open("rb+") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return checks.shared_output(output, is_seen=True, is_locked=True)
    return checks.shared_output(output, is_seen=True, is_locked=False)


def _clocks(world: MPI.Intracomm, leaders: list[int], host: str) -> list[Finding]:
    """The first rank asks the first rank of each other node for the time; the quickest answer counts."""
    if world.rank == FIRST:
        offsets = {}
        for peer in leaders:
            if peer == FIRST:
                continue
            best: tuple[float, float] | None = None
            for _ in range(NUM_PINGS):
                before_s = time.time()
                world.send(None, dest=peer, tag=1)
                theirs_s, name = cast("tuple[float, str]", world.recv(source=peer, tag=1))
                after_s = time.time()
                way = (after_s - before_s, theirs_s - (before_s + after_s) / 2.0)
                best = way if best is None else min(best, way)
            if best is not None:
                offsets[name] = best[1]
        return checks.clocks(offsets)
    if world.rank in leaders:
        for _ in range(NUM_PINGS):
            world.recv(source=FIRST, tag=1)
            world.send((time.time(), host), dest=FIRST, tag=1)
    return []
