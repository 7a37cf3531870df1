"""Fit one speed model: the job comes on stdin, the model goes to stdout; `FitProcess` starts this."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path

from hpcbal.speed_models.packing import pack_model, unpack_job

NICE = 19  # training runs on the same cores
# Where the kernel weighs sessions against each other, this one's weight: a tenth of a full core. With less, a
# model of the shared machines that it is made for would come too late.
SESSION_NICE = 10
AUTOGROUP = Path("/proc/self/autogroup")


def main(lifeline: int) -> None:
    """Do one job, unless the process that asked for it dies before.

    Args:
        lifeline: a pipe that closes when the other process ends, however it ends.
    """
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    give_way()
    answer = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries print where the model is to go
    job = unpack_job(sys.stdin.buffer.read())
    with os.fdopen(answer, "wb") as file:
        file.write(pack_model(job.name, job()))


def give_way() -> None:
    """Take the lowest priority of the session, and a low one for it."""
    os.nice(NICE)
    # Not there on kernels that do otherwise; or the kernel refuses, as in some containers.
    with contextlib.suppress(OSError):
        AUTOGROUP.write_text(str(SESSION_NICE), encoding="ascii")


def _end_with(lifeline: int) -> None:
    os.read(lifeline, 1)  # nothing is ever written: this returns when the other end is closed
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
