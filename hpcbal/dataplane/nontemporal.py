"""Write samples past the caches with non-temporal ("streaming") stores.

A plain store first takes each cache line away from the cores that have read it. Where that costs more than it
saves, these stores are faster. They are unrelated to the stream of samples (`stream`).
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
"""Overwrites the first array with the second."""

MIN_BYTES = 4096
"""Arrays smaller than this are written with NumPy.

With writer and reader on cores without a common cache, streaming took 0.4 us for 2 KB (NumPy 1.0), 0.5 us for
4 KB (2.0) and 1.4 us for 27 KB (12). On one core, where no line has to be taken away, it took at most 0.7 us
more than NumPy.
"""


def _find_copy() -> Copy | None:
    """Find the compiled copy; None if it was not built, or the processor has no streaming stores for it."""
    try:
        from hpcbal.dataplane import _streaming
    except ImportError:  # installed without a compiler, or built for another machine
        return None
    return _streaming.copy if _streaming.STREAMS else None


_copy = _find_copy()
_plain_copy: Copy = np.copyto


def method() -> str:
    """How large samples can be written to the ring: "streaming stores" or "NumPy"."""
    return "NumPy" if _copy is None else "streaming stores"


def can_stream(target: NDArray[np.generic], values: NDArray[np.generic]) -> bool:
    """Whether `write` bypasses the caches: C-contiguous, same type and shape, at least `MIN_BYTES`."""
    return (
        _copy is not None
        and target.nbytes >= MIN_BYTES
        and values.dtype == target.dtype
        and values.shape == target.shape
        and values.flags.c_contiguous
        and target.flags.c_contiguous
    )


def write(target: NDArray[np.generic], values: NDArray[np.generic]) -> None:
    """Write `values` to `target`, like `target[...] = values`; bypasses the caches if it `can_stream`.

    Other processes see the writes in the same order as plain stores.

    Args:
        target: writable array of numbers, with at least one axis.
        values: of a shape that broadcasts to the shape of `target`, in different memory.

    Raises:
        ValueError: if the shapes do not fit, or the arrays overlap.
    """
    if _copy is not None and can_stream(target, values):
        _copy(target, values)
    else:
        target[...] = values


class QuickerWrite:
    """Writes large arrays to a ring in the faster of two ways: past the caches or with NumPy.

    The faster way is not known in advance. Taking a line away from the cores that have read it takes ten
    times as long as streaming it on one processor, and less time on another (README). So both ways are tried
    during the work; the one with the smaller median time per byte is kept, and after a long time both are
    tried again.

    A trial starts after the ring has been written once, because the kernel has to find memory that is touched
    for the first time. Each way first has a lap that is not timed, so that all lines were last written in the
    same way (if this is the only writer; several writers mix their ways). Then at least one lap and
    `MIN_TIMES` writes are timed. In a large ring, `MAX_LAP_BYTES` are enough for a lap: they are in no cache.

    Attributes:
        streams: whether the next write bypasses the caches.
        ring_bytes: see the argument.

    Args:
        ring_bytes: bytes that this process writes until it and others have written all of the ring, > 0. If
            other writers pause, the ring is finished later; the untimed laps make up for that if at least
            half of the writers work.
        clock: returns seconds.
    """

    def __init__(self, ring_bytes: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.streams = True
        self.ring_bytes = ring_bytes
        self._clock = clock
        self._times: list[float] | None = None  # seconds per byte; None: not timed
        self._best: bool | None = None
        self._plan = self._try_both(ring_bytes)
        self._left_bytes = next(self._plan)

    def __call__(self, target: NDArray[np.generic], values: NDArray[np.generic]) -> None:
        """Write `values` to `target`, as `write` does, in the faster way."""
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
        """Set how the next large arrays are written, and yield how many bytes to write so, at least."""
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
"""Timed writes per way; of many small writes, a median does not need all."""

MAX_LAP_BYTES = 32 * 2**20
LAPS_KEPT = 1000
"""How long the result of a trial is used; long enough that trials cost next to nothing."""
