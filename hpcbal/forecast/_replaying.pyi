"""Replay a program in virtual time (C, see _replaying.c)."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

def replay(
    kind: NDArray[np.int64],
    server: NDArray[np.int64],
    num_bytes: NDArray[np.float64],
    num_waits: NDArray[np.int64],
    starts: NDArray[np.int64],
    dependents: NDArray[np.int64],
    roots: NDArray[np.int64],
    durations_s: NDArray[np.float64],
    drawn: NDArray[np.int64],
    worker_slowness: NDArray[np.float64],
    server_slowness: NDArray[np.float64],
    bytes_per_s: NDArray[np.float64],
    begins_s: NDArray[np.float64],
    stop: NDArray[np.uint8],
    ends_s: NDArray[np.float64],
    num_done: NDArray[np.int64],
    bytes_moved: NDArray[np.float64],
    busy_s: NDArray[np.float64],
    communicating_s: NDArray[np.float64],
    exposed_s: NDArray[np.float64],
    computing_s: NDArray[np.float64],
    serving_s: NDArray[np.float64],
    end_s: NDArray[np.float64],
    window_bytes: float,
    in_turn: bool,
    observe: Callable[[int, int, int, float, float], object] | None,
    /,
) -> None:
    """Replay until the first worker has done its steps, without Python's lock.

    Args:
        kind to begins_s, window_bytes, in_turn: fields of a `Program`.
        stop: shape (1,); the replay ends early once it is not 0. Another thread may set it.
        observe: is called with every chunk at its end: worker, step, operation, begin_s, end_s.
        ends_s to end_s: fields of an empty `Record`, which are filled in.

    Raises:
        ValueError: the arrays do not fit together, or a time or a rate is no finite number.
        BufferError: an array is not C-contiguous, or is read-only.
        Exception: `observe` raised it.
        KeyboardInterrupt: the replay was stopped, or is in the main thread and Ctrl-C has come.
    """
