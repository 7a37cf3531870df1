"""Times of calls are compared in turn."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hpcbal.training import committee


def test_load_that_slows_both_calls_changes_no_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    loads = iter([1.0, 1.0] + [load for load in (1.0, 30.0, 4.0, 9.0, 2.0) for _ in "ab"] + [1.0] * 400)

    def taking(seconds: float) -> Callable[[], None]:
        def call() -> None:
            nonlocal now_s
            now_s += seconds * next(loads)

        return call

    monkeypatch.setattr(committee.time, "perf_counter", lambda: now_s)
    assert committee.times_as_long(taking(0.03), taking(0.01)) == pytest.approx(3.0)
