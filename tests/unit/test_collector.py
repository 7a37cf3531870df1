"""The garbage collector pauses for the main thread only: it belongs to the whole process."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

from hpcbal.processes import without_garbage_collection


def is_off_inside() -> bool:
    with without_garbage_collection():
        return not gc.isenabled()


def test_only_the_main_thread_switches_the_collector_off() -> None:
    assert gc.isenabled()
    assert is_off_inside()
    assert gc.isenabled()
    with ThreadPoolExecutor(1) as thread:
        assert not thread.submit(is_off_inside).result()
    assert gc.isenabled()
