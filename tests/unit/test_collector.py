"""The garbage collector pauses for the main thread only: it belongs to the whole process."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest

from hpcbal.garbage import collect_as_usual, collect_rarely, without_garbage_collection


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


def test_cycles_of_users_are_found_as_soon_as_without_hpcbal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects of the start are frozen once, so that later cycles are not kept for ever."""
    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    collect_as_usual()  # a test before this one may have started the program in this process
    usual = gc.get_threshold()
    frozen.clear()
    collect_rarely()
    assert gc.get_threshold()[0] > 10 * usual[0]
    collect_as_usual()
    collect_as_usual()
    assert gc.get_threshold() == usual
    assert frozen == [True]
