"""Catch signals, and end the whole job when one rank cannot continue."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.errors import ExitCode, HpcbalError
from hpcbal.exit_codes import code_of_error
from hpcbal.printable import printable
from hpcbal.processes import STOP_SIGNALS, deliver_stop_signals
from hpcbal.runtime.handoff.end_file import note_end
from hpcbal.runtime.handoff.rank_process import NUM_BYTES, Activity, text_in
from hpcbal.runtime.handoff.start_file import StartFile

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
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)

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


class JobEnd:
    """Ends the job because of an error on this rank.

    Each rank of a node has one byte in shared memory, which it sets before it aborts. The other ranks then
    know that it aborted and was not killed. Behind that byte it keeps what it does.

    Args:
        world: communicator of all ranks.
        activity: what this rank does.
    """

    def __init__(self, world: MPI.Intracomm, activity: Activity) -> None:
        self._world = world
        self._activity = activity
        self._window: MPI.Win | None = None
        self._texts: NDArray[np.uint8] = np.zeros((1, NUM_BYTES), np.uint8)
        self._ending: NDArray[np.uint8] = np.zeros(1, np.uint8)
        self._mine = 0

    def share(self, node_comm: MPI.Intracomm) -> None:
        """Set up the shared memory of this node's ranks; collective over the node."""
        num_bytes = node_comm.size * (1 + NUM_BYTES)
        from mpi4py import MPI  # not at the top: the launcher reads this module without MPI

        window = MPI.Win.Allocate_shared(num_bytes if node_comm.rank == 0 else 0, 1, MPI.INFO_NULL, node_comm)
        buffer: Any = window.Shared_query(0)[0]
        memory = np.frombuffer(buffer, np.uint8)[:num_bytes].reshape(node_comm.size, 1 + NUM_BYTES)
        memory[node_comm.rank] = 0
        node_comm.Barrier()
        self._window, self._mine = window, node_comm.rank
        self._ending, self._texts = memory[:, 0], memory[:, 1:]
        self._activity.keep_in(self._texts[self._mine].data)

    def announced(self) -> bool:
        """Whether a rank of this node is ending the job and reports the reason."""
        return bool(self._ending.any())

    def activity_of(self, node_rank: int) -> str:
        """What a rank of this node does, or did last; empty if it has not said.

        Args:
            node_rank: the rank's place among the ranks of this node.
        """
        return text_in(self._texts[node_rank]) if node_rank < len(self._texts) else ""

    def abort(self, code: int) -> None:
        """End all ranks at once; does not return."""
        self._ending[self._mine] = 1
        try:
            StartFile.of_rank().hint(abort_code=code)  # mpirun's own code may be that of a rank that crashed
            if code == ExitCode.RUN_AGAIN:
                note_end(str(code))  # a job script runs the same job again
            logging.shutdown()
        finally:
            self._world.Abort(code)

    def abort_for(self, error: BaseException) -> None:
        """Report the error and end the job; does not return.

        Our own errors are one sentence with rank and host; other errors are reported with a traceback, in the
        log if it is open. The other ranks may wait in a collective forever, so the job must be aborted.
        """
        who = f"rank {self._world.rank} on {socket.gethostname()}"
        alone = not self.announced()
        self._ending[self._mine] = 1
        is_ours = isinstance(error, HpcbalError)
        if log.hasHandlers():
            show_trace = not is_ours or log.isEnabledFor(logging.DEBUG)
            log.error("%s ends the job: %s", who, error, exc_info=error if show_trace else None)
            if is_ours and alone and self._world.rank != SCHEDULER_RANK:
                write_last_words(f"{who}: {error}")  # the log of rank 0 is on stderr already
        else:  # the error came before the logs were open
            text = str(error) if is_ours else "".join(traceback.format_exception(error))
            write_last_words(f"{who}: {text}")
        self.abort(code_of_error(error))

    def close(self) -> None:
        """Free the memory; collective over the node."""
        if self._window is not None:
            self._ending = np.zeros(1, np.uint8)  # a view of freed memory would crash the process
            self._texts = np.zeros((1, NUM_BYTES), np.uint8)
            self._activity.keep_in(bytearray(NUM_BYTES))
            self._mine = 0
            self._window.Free()
            self._window = None


def write_last_words(text: str) -> None:
    """Print to stderr without buffering, from a thread or a dying process; ignores a closed stderr."""
    with contextlib.suppress(OSError):  # the job must end in any case
        sys.stderr.flush()
        os.write(2, f"hpcbal: {printable(text)}\n".encode())
