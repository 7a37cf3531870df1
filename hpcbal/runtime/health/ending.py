"""When one rank cannot go on it ends the whole job, and says why once."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import traceback
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.errors import ExitCode, HpcbalError
from hpcbal.runtime.handoff.start_file import StartFile

log = logging.getLogger(__name__)


class JobEnd:
    """Ends the job for an error of this rank.

    The ranks of a node share one byte each, which says that the rank is about to abort. So the others, who
    soon see that it is gone, do not take it for killed.

    Args:
        world: of all ranks.
    """

    def __init__(self, world: MPI.Intracomm) -> None:
        self._world = world
        self._window: MPI.Win | None = None
        self._ending: NDArray[np.uint8] = np.zeros(1, np.uint8)
        self._mine = 0

    def share(self, node_comm: MPI.Intracomm) -> None:
        """From now on the ranks of this node know of each other; collective over the node."""
        num_bytes = node_comm.size if node_comm.rank == 0 else 0
        window = MPI.Win.Allocate_shared(num_bytes, 1, MPI.INFO_NULL, node_comm)
        buffer: Any = window.Shared_query(0)[0]
        memory = np.frombuffer(buffer, np.uint8)[: node_comm.size]
        memory[node_comm.rank] = 0
        node_comm.Barrier()
        self._window, self._ending, self._mine = window, memory, node_comm.rank

    def announced(self) -> bool:
        """Whether a rank of this node is ending the job, and has said why."""
        return bool(self._ending.any())

    def abort(self, code: int) -> None:
        """End all ranks at once; does not return."""
        self._ending[self._mine] = 1
        StartFile.of_rank().hint(abort_code=code)  # mpirun's own code may be that of a rank that crashed
        logging.shutdown()
        self._world.Abort(code)

    def abort_for(self, error: BaseException) -> None:
        """Say what happened and end the job; does not return.

        Our own errors are one sentence with rank and host; of any other the traceback is shown, by the log
        if it is there. The others may wait in a collective for ever, so nothing milder would do.
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
        else:  # it failed before the logs were there
            text = str(error) if is_ours else "".join(traceback.format_exception(error))
            write_last_words(f"{who}: {text}")
        self.abort(int(error.exit_code if isinstance(error, HpcbalError) else ExitCode.INTERNAL_ERROR))

    def close(self) -> None:
        """Free the memory; collective over the node."""
        if self._window is not None:
            self._ending = np.zeros(1, np.uint8)  # a view of freed memory would crash the process
            self._mine = 0
            self._window.Free()
            self._window = None


def write_last_words(text: str) -> None:
    """Print from a thread or a dying process, past any buffering; lost if nobody reads stderr any more."""
    with contextlib.suppress(OSError):  # the job must be ended all the same
        sys.stderr.flush()
        os.write(2, f"hpcbal: {text}\n".encode())
