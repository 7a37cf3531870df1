"""Waiting leaves the core to others and still notices soon."""

from __future__ import annotations

import time

import pytest

from hpcbal.comm import backoff as waiting
from hpcbal.comm.backoff import Backoff


@pytest.mark.parametrize("make", [Backoff, Backoff.patient, Backoff.idle])
def test_a_long_wait_uses_little_of_a_core(make):
    backoff = make()
    began, cpu_began = time.monotonic(), time.process_time()
    while time.monotonic() - began < 0.4:
        backoff.wait()
    assert time.process_time() - cpu_began < 0.15 * (time.monotonic() - began)


def test_an_idle_rank_polls_a_few_hundred_times_a_second(monkeypatch: pytest.MonkeyPatch):
    slept: list[float] = []
    monkeypatch.setattr(waiting.time, "sleep", slept.append)
    backoff = Backoff.idle()
    polls = 0
    while sum(slept) < 1.0:
        backoff.wait()
        polls += 1
    assert polls < 250


def test_pauses_grow_to_the_cap_and_start_over(monkeypatch: pytest.MonkeyPatch):
    slept: list[float] = []
    yields: list[None] = []
    monkeypatch.setattr(waiting.time, "sleep", slept.append)
    monkeypatch.setattr(waiting.os, "sched_yield", lambda: yields.append(None))
    backoff = Backoff(max_sleep_s=4e-4, num_spins=3, num_yields=2, first_sleep_s=1e-4)
    for _ in range(9):
        backoff.wait()
    assert len(yields) == 2
    assert slept == [1e-4, 2e-4, 4e-4, 4e-4]
    backoff.reset()
    for _ in range(6):
        backoff.wait()
    assert len(yields) == 4
    assert slept[4:] == [1e-4]
