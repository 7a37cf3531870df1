"""The first and last steps of every rank of a job, whatever it computes in between."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from contextlib import ExitStack

from mpi4py import MPI

from hpcbal.cluster.job_end import UNDECIDED
from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.cluster.started import Launcher, fault_of_world
from hpcbal.comm.collectives import ReportedError, patient_barrier
from hpcbal.errors import ExitCode
from hpcbal.processes import remember_rank, say
from hpcbal.runtime.handoff.end_file import note_end
from hpcbal.runtime.handoff.start_file import StartFile
from hpcbal.runtime.health.ending import JobEnder
from hpcbal.runtime.health.liveness import Liveness

FINALIZE_S = 60
"""The end of the run is recorded by then: a rank that cannot leave MPI is ended."""

Body = Callable[[MPI.Intracomm, JobEnder, ExitStack], int]
"""Gets the communicator of all ranks, what ends the job, and a stack that is unwound after the exit code is
recorded; returns the exit code of this process."""


def run_in_job(launcher: Launcher, liveness: Liveness, body: Body) -> int:
    """Run one rank; returns the exit code, which is the same on all ranks.

    An error that only this rank has seen aborts the whole job: if the rank merely left, the others would
    wait for it.

    Args:
        launcher: the launcher that started this process.
        liveness: of this rank.
        body: what it does; a `ReportedError` ends all ranks together.
    """
    world = MPI.COMM_WORLD
    end = JobEnder(world, liveness)
    remember_rank()
    logging.raiseExceptions = False  # a full disk must not fill stderr with tracebacks of the logs
    with ExitStack() as last:
        try:
            code = _run_or_leave(world, launcher, end, last, body)
        except BaseException as error:  # also if the exit code cannot be recorded: the others wait
            end.abort_for(error)
            raise
    patient_barrier(world)
    end.close()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(FINALIZE_S)  # it holds the interpreter, so no thread could end this process
    if StartFile.of_rank().read().is_orphaned:
        return code  # without mpirun it fails; mpi4py tries once more when Python has ended
    MPI.Finalize()
    signal.alarm(0)
    return code


def _run_or_leave(
    world: MPI.Intracomm, launcher: Launcher, end: JobEnder, last: ExitStack, body: Body
) -> int:
    """Run, or leave together with all ranks after an error that one of them has reported."""
    try:
        _check_world(world, launcher)
        patient_barrier(world)
        if world.rank == SCHEDULER_RANK:
            StartFile.of_rank().add(is_ready=True)  # all ranks catch signals now
            note_end(UNDECIDED)
        return body(world, end, last)
    except ReportedError as error:
        return StartFile.of_rank().leave_exit_code(world.rank, error.code)


def _check_world(world: MPI.Intracomm, launcher: Launcher) -> None:
    """Exit if the MPI world is smaller than the launcher's; the first rank reports it."""
    fault = fault_of_world(launcher, world.rank, world.size, mpi_library())
    if fault is None:
        return
    if launcher.rank in (None, SCHEDULER_RANK):
        say(f"hpcbal: {fault}")
    raise ReportedError(int(ExitCode.WRONG_INPUT))


def mpi_library() -> str:
    """Return name and version of the MPI library that mpi4py uses, such as `Open MPI 5.0.11`."""
    name, version = MPI.get_vendor()
    return f"{name} {'.'.join(map(str, version))}"
