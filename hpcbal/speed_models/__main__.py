"""Fit one speed model: read the job from stdin, write the model to stdout; `FitProcess` starts this."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path

from hpcbal.speed_models.fit_process import pack_model, unpack_job

NICE = 19  # training runs on the same cores
# This session's weight, on kernels that weigh sessions against each other: a tenth of a full core. With less,
# a model would be ready too late on the shared machines that it is made for.
SESSION_NICE = 10
AUTOGROUP = Path("/proc/self/autogroup")


def main(lifeline: int) -> None:
    """Do one job, unless the process that requested it dies first.

    Args:
        lifeline: a pipe that closes when the other process ends, in whatever way.
    """
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    give_way()
    answer = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # stdout must contain only the model
    job = unpack_job(sys.stdin.buffer.read())
    with os.fdopen(answer, "wb") as file:
        file.write(pack_model(job.name, job()))


def give_way() -> None:
    """Take the lowest priority within the session, and a low weight for the session."""
    os.nice(NICE)
    # The file does not exist on other kernels, or the kernel refuses access, as in some containers.
    with contextlib.suppress(OSError):
        AUTOGROUP.write_text(str(SESSION_NICE), encoding="ascii")


def _end_with(lifeline: int) -> None:
    os.read(lifeline, 1)  # nothing is ever written: this returns when the other end closes
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
