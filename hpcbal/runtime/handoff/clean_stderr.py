"""Forward mpirun's stderr without the NUL bytes with which Open MPI ends some of its messages.

With a NUL in it, a log counts as binary: grep and many viewers do not show it.
"""

from __future__ import annotations

import os
import threading

_CHUNK_BYTES = 1 << 16
_STDERR = 2


class CleanStderr:
    """A pipe for mpirun's stderr, and a thread that forwards what comes through it.

    mpirun inherits the reading end too. So if `hpcbal run` is killed, mpirun gets no SIGPIPE, after some of
    which it would abort the ranks instead of letting them stop cleanly.

    Attributes:
        reading_end, writing_end: descriptors of the pipe, for mpirun.
    """

    def __init__(self) -> None:
        self.reading_end, self.writing_end = os.pipe()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> CleanStderr:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is None:
            os.close(self.reading_end)
            os.close(self.writing_end)

    def forward(self) -> None:
        """Start forwarding; call this once mpirun has the pipe."""
        os.close(self.writing_end)
        self._thread = threading.Thread(target=self._forward, name="stderr-of-mpirun", daemon=True)
        self._thread.start()

    def drain(self, timeout_s: float) -> None:
        """Wait until everything is forwarded, but not for processes that outlive mpirun and hold the pipe."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _forward(self) -> None:
        is_read = True
        while chunk := os.read(self.reading_end, _CHUNK_BYTES):
            rest = chunk.replace(b"\0", b"")
            while rest and is_read:
                try:
                    rest = rest[os.write(_STDERR, rest) :]
                except OSError:  # nobody reads stderr any more; mpirun must not be blocked by that
                    is_read = False
        os.close(self.reading_end)
