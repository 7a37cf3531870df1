"""Catch signals, and end the whole job when one rank cannot continue."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import traceback
from types import FrameType
from typing import TYPE_CHECKING

from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.errors import HpcbalError, InputError, code_of_error
from hpcbal.processes import say
from hpcbal.runtime.handoff.end_file import note_end
from hpcbal.runtime.handoff.start_file import StartFile
from hpcbal.runtime.health.liveness import ROW_BYTES, Liveness
from hpcbal.stop_signals import STOP_SIGNALS, deliver_stop_signals, ignore_stop_signals
from hpcbal.telemetry.streams.rank_log import TOLD

if TYPE_CHECKING:
    from mpi4py import MPI

log = logging.getLogger(__name__)


_PASSED_ON = f"signal {signal.SIGUSR2.name}"


class StopFlag:
    """Remembers the first signal that asked for a clean stop.

    These signals are `STOP_SIGNALS`: a batch system may send any of them to the ranks. A second INT ends the
    process at once. `hpcbal run` passes every signal on as USR2; the reason names the one that it got.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self._is_taken = False

    def install(self) -> None:
        """Catch the signals; must be called from the main thread."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("signal handlers can only be installed from the main thread")
        for number in STOP_SIGNALS:
            signal.signal(number, self._handle)
        deliver_stop_signals()

    def ignore(self) -> None:
        """Ignore the signals from now on, because the exit code is decided."""
        ignore_stop_signals()

    def take(self) -> str | None:
        """Return the reason once after the signal; otherwise None."""
        if self.reason is None or self._is_taken:
            return None
        self._is_taken = True
        if self.reason == _PASSED_ON and (sent := StartFile.of_rank().read().stop_signal) is not None:
            self.reason = f"signal {sent}"
        return self.reason

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.reason is not None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
        if self.reason is None:
            self.reason = f"signal {signal.Signals(number).name}"


class JobEnder:
    """Ends the job because of an error on this rank.

    It announces that in memory that the ranks of a node share, so the others know that it was not killed.

    Args:
        world: communicator of all ranks.
        liveness: of this rank; its notes are in the same memory.
    """

    def __init__(self, world: MPI.Intracomm, liveness: Liveness) -> None:
        self._world = world
        self._liveness = liveness
        self._window: MPI.Win | None = None

    def share(self, node_comm: MPI.Intracomm) -> None:
        """Set up the shared memory of this node's ranks; collective over the node.

        Raises:
            InputError: on all ranks, if the node has no memory for it.
        """
        from hpcbal.dataplane.shared_memory import allocate, shortage  # here: `hpcbal run` needs no NumPy

        num_bytes, what = ROW_BYTES * node_comm.size, "the notes of the ranks"
        problem = node_comm.bcast(shortage(num_bytes, what, None) if node_comm.rank == 0 else None)
        if problem is not None:
            raise InputError(problem)
        window = allocate(node_comm, num_bytes, what, None)
        self._liveness.share(window.Shared_query(0)[0], num_bytes, node_comm.rank)
        node_comm.Barrier()
        self._window = window

    def abort(self, code: int) -> None:
        """End all ranks at once; does not return."""
        self._liveness.announce_end()
        try:
            StartFile.of_rank().hint(abort_code=code)  # mpirun's own code may be that of a rank that crashed
            note_end(str(code))  # counts unless a loss is noted: then the same command may continue
            logging.shutdown()
        finally:
            self._world.Abort(code)

    def abort_for(self, error: BaseException) -> None:
        """Report the error and end the job; does not return.

        Our own errors are one sentence with rank and host; other errors are reported with a traceback, in the
        log if it is open. `hpcbal run`, if it has started the ranks, reports the sentence behind what mpirun
        says. The other ranks may wait in a collective forever, so the job must be aborted.
        """
        is_ours = isinstance(error, HpcbalError)
        cause = str(error) if is_ours else f"{type(error).__name__}: {error}"
        sentence = f"rank {self._world.rank} on {socket.gethostname()} ends the job: {cause}"
        alone = not self._liveness.is_ending()
        self._liveness.announce_end()
        is_told = alone and StartFile.of_rank().leave_last_words(sentence)
        trace = None if is_ours and not log.isEnabledFor(logging.DEBUG) else error
        if log.hasHandlers():
            log.error("%s", sentence, exc_info=trace, extra={TOLD: is_told})
            is_told = is_told or not (is_ours and alone) or self._world.rank == SCHEDULER_RANK  # by its log
        elif trace is not None:  # the error came before the logs were open
            say("".join(traceback.format_exception(trace)))
        if not is_told:
            say(f"hpcbal: {sentence}")
        self.abort(code_of_error(error))

    def close(self) -> None:
        """Free the memory; collective over the node."""
        if self._window is not None:
            self._liveness.unshare()
            self._window.Free()
            self._window = None


LEAVE_S = 5.0
"""How long code of the user may keep a rank from ending whose work is done."""


def leave_soon(rank: int | None, code: int) -> None:
    """End this process in `LEAVE_S` at the latest; everything is recorded.

    Python would wait at its exit for threads that are no daemons, and for processes of `multiprocessing`;
    mpirun waits for the last rank.

    Args:
        rank: rank of this process, if known.
        code: exit code of this process.
    """

    def leave() -> None:
        threads = [thread for thread in threading.enumerate() if not thread.daemon]
        names = [repr(thread.name) for thread in threads if thread is not threading.main_thread()]
        names += [repr(process.name) for process in multiprocessing.active_children()]
        if names:
            who = "a rank" if rank is None else f"rank {rank}"
            say(
                f"hpcbal: warning: {who}: {', '.join(names)} still ran {LEAVE_S:.0f} s after the end of the "
                "run; the rank ends without waiting. Start threads and processes with daemon=True"
            )
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed
            sys.stdout.flush()
        os._exit(code)

    timer = threading.Timer(LEAVE_S, leave)
    timer.daemon = True
    timer.start()
