"""How often Python searches for cycles of objects that nobody refers to."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

_USUAL = gc.get_threshold()
_WHILE_IMPORTING = 50_000
"""Imports make a million objects that stay. With Python's 700, the search for garbage among them takes a
tenth of the time in which a rank starts, and a fifth of that in which TensorFlow is imported."""


def collect_rarely() -> None:
    """Search rarely, until `collect_as_usual`."""
    gc.set_threshold(_WHILE_IMPORTING)


def collect_as_usual() -> None:
    """Search as often as Python does, but not among what there is now; called before user code trains.

    A cycle of a user's may hold a batch, or tensors of a GPU, and must not wait for 50,000 objects.
    """
    if gc.get_threshold() != _USUAL:
        gc.freeze()
        gc.set_threshold(*_USUAL)


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
