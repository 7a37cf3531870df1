"""The doctor's ranks, started by a launcher or by a doctor that is alone."""

from __future__ import annotations

import importlib
import importlib.util
import os
import socket
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcbal.cluster.started import Launcher, fault_of_world
from hpcbal.doctor import ERROR, Finding, checks, local
from hpcbal.doctor.child import Watch, ask
from hpcbal.errors import ClusterError, ExitCode
from hpcbal.processes import say
from hpcbal.runtime.launch import MPI_SETTINGS, SESSION_DIRECTORY, mpirun_command, mpirun_environment

if TYPE_CHECKING:
    from mpi4py import MPI


STAGE_S = 60.0
"""Seconds that a step of all ranks may take, the start of MPI among them."""
TWO_RANKS_S = 90.0
FIRST = 0

Show = Callable[[Sequence[Finding], int, Sequence[str]], int]
"""Prints findings, given the number of ranks and the hosts; returns the exit code."""


def check_as_rank(launcher: Launcher, output: Path, show: Show, *, only_ranks: bool) -> int:
    """Check all nodes together; collective. The first rank prints; returns the exit code, equal on all ranks.

    Args:
        launcher: the launcher that started this process.
        output: directory of the run, which need not exist.
        show: prints the findings.
        only_ranks: check only what ranks do together.
    """
    host = socket.gethostname()
    is_first = launcher.rank in (None, FIRST)

    def tell(doing: str) -> None:
        text = f"{doing} has not ended after {STAGE_S:g} s"
        do = "see whether the mpirun is that of mpi4py's MPI, and whether MPI uses the right network"
        hung = Finding("MPI", ERROR, text, do, (host,))
        if is_first:
            show([hung], launcher.size or 1, [host])
        else:
            say(f"hpcbal doctor: {hung.sentence()}")

    watch = Watch(STAGE_S, tell)
    watch.stage("the start of MPI")
    for name, value in MPI_SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        mpi: Any = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        watch.close()
        if is_first:
            show([_no_mpi(str(error))], launcher.size or 1, [host])
        return int(ExitCode.INTERNAL_ERROR)
    from hpcbal.runtime.job import mpi_library

    world, library = mpi.COMM_WORLD, mpi_library()
    fault = fault_of_world(launcher, world.rank, world.size, library)
    if fault is not None:
        watch.close()
        what, _, do = fault.partition("; ")
        if is_first:
            show([Finding("MPI", ERROR, what, do)], launcher.size or 1, [host])
        return int(ExitCode.INTERNAL_ERROR)
    code = _check_world(world, launcher, library, output, show, watch.stage, only_ranks=only_ranks)
    watch.close()
    return code


def _check_world(
    world: MPI.Intracomm,
    launcher: Launcher,
    library: str,
    output: Path,
    show: Show,
    stage: Callable[[str], None],
    *,
    only_ranks: bool,
) -> int:
    from hpcbal.cluster.discovery import split_by_node
    from hpcbal.comm.collectives import patient_allgather, patient_broadcast, patient_gather
    from hpcbal.doctor.ranks import library_and_level, of_ranks

    stage("the search for nodes")
    node = split_by_node(world, None)
    host = socket.gethostname()
    hosts = [name for name, is_leader in patient_allgather(world, (host, node.rank == FIRST)) if is_leader]
    found: list[Finding] = []
    if world.rank == FIRST:
        found += [] if only_ranks else [local.here()]
        found.append(library_and_level(library, world, len(hosts), launcher.num_nodes))
        if launcher.name == "Open MPI":
            said = os.environ.get("OMPI_VERSION")
            wrong = checks.launcher_of_library(said and f"Open MPI {said}", library, "the launcher")
            found += [] if wrong is None else [wrong]
        if not only_ranks:
            found += checks.container(local.container_name(), library, launcher)
    if not only_ranks and node.rank == FIRST:
        stage("the checks of a node")
        found += [finding.on(host) for finding in local.of_node(output, imports=True)]
    found += of_ranks(world, node, output, launcher.local_size, stage)
    stage("gathering what was found")
    everything = patient_gather(world, found)
    code = 0
    if everything is not None:
        code = show([finding for some in everything for finding in some], world.size, hosts)
    return int(patient_broadcast(world, code))


def ask_two_ranks(arguments: Sequence[str]) -> list[Finding]:
    """Start two ranks with mpirun, as `hpcbal run` would; returns their findings, and those about mpirun.

    Args:
        arguments: the command line of the ranks, without the program's name.
    """
    if importlib.util.find_spec("mpi4py") is None:
        return [_no_mpi("the module is not installed")]
    try:
        command = mpirun_command(arguments, 2)
    except ClusterError as error:
        what, _, do = str(error).partition("; ")
        return [Finding("MPI", ERROR, what, do)]
    with tempfile.TemporaryDirectory(prefix="hpcbal-", ignore_cleanup_errors=True) as session:
        environ = mpirun_environment(os.environ, 2, 1) | dict.fromkeys(SESSION_DIRECTORY, session)
        answer = ask(command, TWO_RANKS_S, environ)
    if answer.facts is None or "checks" not in answer.facts:
        text = f"two ranks of {command[0]} have not answered ({answer.fault})"
        do = "try 'mpirun -n 2 hpcbal doctor' and read its first lines"
        return [Finding("MPI", ERROR, text, do)]
    found = [
        Finding(each["check"], each["level"], each["text"], each["do"]) for each in answer.facts["checks"]
    ]
    library = next((finding.text.split(",")[0] for finding in found if finding.check == "MPI"), "")
    found += checks.container(local.container_name(), library, None)
    wrong = checks.launcher_of_library(local.version_of_mpirun(), library, "the first mpirun on PATH")
    apart = ("cores", "devices")  # a process that is alone has its own
    return [
        *(finding for finding in found if finding.check not in apart),
        *([] if wrong is None else [wrong]),
    ]


def _no_mpi(reason: str) -> Finding:
    return Finding(
        "MPI",
        ERROR,
        f"mpi4py cannot be imported ({reason})",
        "install it for the launcher's MPI: pip install 'hpcbal[mpi]'",
    )
