"""Write samples past the caches with non-temporal ("streaming") stores.

A plain store first takes each cache line from the cores that have read it. Where that costs more than it
saves, these stores are quicker. They have nothing to do with the stream of samples (`stream`).
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

log = logging.getLogger(__name__)

Copy = Callable[[NDArray[Any], NDArray[Any]], None]
"""Writes the second array over the first."""

MIN_BYTES = 4096
"""Smaller arrays are written with NumPy.

Where writer and reader sit on cores without a common cache, streaming took 0.4 us for 2 KB (NumPy 1.0),
0.5 us for 4 KB (2.0) and 1.4 us for 27 KB (12). On one core, with nothing to take away, it took 0.7 us
more at most.
"""


def _find_copy() -> Copy | None:
    """The compiled copy; None where it was not built, or the processor has no streaming stores for it."""
    try:
        from hpcbal.dataplane import _streaming
    except ImportError:  # installed without a compiler, or built for another machine
        return None
    return _streaming.copy if _streaming.STREAMS else None


_copy = _find_copy()
_plain_copy: Copy = np.copyto


def method() -> str:
    """How large samples can be written into the ring: "streaming stores" or "NumPy"."""
    return "NumPy" if _copy is None else "streaming stores"


def can_stream(target: NDArray[np.generic], values: NDArray[np.generic]) -> bool:
    """Whether `write` goes past the caches: C-contiguous, of one type and shape, at least `MIN_BYTES`."""
    return (
        _copy is not None
        and target.nbytes >= MIN_BYTES
        and values.dtype == target.dtype
        and values.shape == target.shape
        and values.flags.c_contiguous
        and target.flags.c_contiguous
    )


def write(target: NDArray[np.generic], values: NDArray[np.generic]) -> None:
    """Write `values` over `target`, as `target[...] = values` does; past the caches if it `can_stream`.

    What other processes see is ordered as with plain stores.

    Args:
        target: writable, of numbers, at least one axis.
        values: of a shape that broadcasts to that of `target`, in different memory.

    Raises:
        ValueError: the shapes do not fit, or the arrays overlap.
    """
    if _copy is not None and can_stream(target, values):
        _copy(target, values)
    else:
        target[...] = values


class QuickerWrite:
    """Writes large arrays into a ring in the way that is quicker there: past the caches or with NumPy.

    Which one that is cannot be known beforehand. Taking a line from the cores that have read it costs ten
    times as much as streaming it on one processor, and less than streaming it on another (README). So both
    are tried in the course of the work; the one of the smaller median time per byte is kept, and after a
    long while both are tried again.

    A trial begins when the ring has been written once, as memory that is touched for the first time has to
    be found by the kernel. Each way then has a lap that does not count, so that afterwards lines were last
    written in the same way (the only writer's; several mix their ways), and then at least a lap, and
    `MIN_TIMES` writes, that do. Of a large ring `MAX_LAP_BYTES` will do for a lap: they are in no cache.

    Attributes:
        streams: whether what comes next goes past the caches.
        ring_bytes: as given.

    Args:
        ring_bytes: what this process writes until all of the ring is written, by it and by others, > 0. Where
            others rest, the ring is written later, which the laps that do not count make up for if at least
            half of them work.
        clock: seconds.
    """

    def __init__(self, ring_bytes: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.streams = True
        self.ring_bytes = ring_bytes
        self._clock = clock
        self._times: list[float] | None = None  # seconds per byte; None: they do not count
        self._best: bool | None = None
        self._plan = self._try_both(ring_bytes)
        self._left_bytes = next(self._plan)

    def __call__(self, target: NDArray[np.generic], values: NDArray[np.generic]) -> None:
        """Write `values` to `target`, as `write` does, in the way that is quicker."""
        if _copy is None or not can_stream(target, values):
            target[...] = values
            return
        if self._left_bytes <= 0 and (self._times is None or len(self._times) >= MIN_TIMES):
            self._left_bytes = next(self._plan)
        self._left_bytes -= target.nbytes
        copy = _copy if self.streams else _plain_copy
        if self._times is None or len(self._times) == MAX_TIMES:
            copy(target, values)
            return
        began_s = self._clock()
        copy(target, values)
        self._times.append((self._clock() - began_s) / target.nbytes)

    def _try_both(self, ring_bytes: int) -> Iterator[int]:
        """Say how the next large arrays are written, and yield how many bytes of them, at least."""
        lap_bytes = min(ring_bytes, MAX_LAP_BYTES)
        yield max(0, ring_bytes - lap_bytes)  # the rest of it is the first lap
        while True:
            medians_s = {}
            for self.streams in (True, False):
                yield lap_bytes
                self._times = []
                yield lap_bytes
                medians_s[self.streams] = statistics.median(self._times)
                self._times = None
            self.streams = medians_s[True] <= medians_s[False]
            if self.streams != self._best:
                self._best = self.streams
                way = "streaming stores" if self.streams else "NumPy"
                us_per_mb = [1e12 * median_s for median_s in medians_s.values()]
                log.info(
                    "samples are written with %s (streaming stores %.0f us per MB, NumPy %.0f)",
                    way,
                    *us_per_mb,
                )
            yield LAPS_KEPT * lap_bytes


MIN_TIMES, MAX_TIMES = 32, 1000
"""Writes that are timed of each way; of many small ones not all are needed for a median."""

MAX_LAP_BYTES = 32 * 2**20
LAPS_KEPT = 1000
"""How long the result of a trial is used, so that trying costs next to nothing."""
