"""Keep Python's garbage collector from searching large values that are still growing."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Do not search for cycles of objects inside the block.

    For code that makes hundreds of thousands of objects, keeps them all, and makes no cycles: the collector
    walks through them again and again, for a quarter to three quarters of the time, and finds nothing.
    It keeps working in another thread than the main one, because the whole process shares it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
