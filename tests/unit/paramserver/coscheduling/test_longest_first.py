"""The order in which `harmony-lookahead` takes jobs."""

from __future__ import annotations

import dataclasses

from hpcbal.paramserver.coscheduling.harmony import longest_first
from hpcbal.policies.grouping import JobLoad


def load(name: str, compute_s: float, iterations_left: float | None, data_blocks: int) -> JobLoad:
    return JobLoad(name, compute_s, 0.0, 1, iterations_left=iterations_left, data_blocks=data_blocks)


def test_jobs_that_could_end_last_come_first_and_short_ones_follow() -> None:
    # On 8 machines all computing takes (800 + 800 + 40 + 16) / 8 = 207 s at least. Alone, `serial` takes
    # 800 s since it is of one block, `wide` 100 s; the limit is a fifth of 800 s.
    serial, wide = load("serial", 1.0, 800, 1), load("wide", 8.0, 100, 8)
    short, shorter = load("short", 4.0, 10, 8), load("shorter", 4.0, 4, 8)
    unknown = load("unknown", 1.0, None, 8)
    found = longest_first([unknown, short, wide, shorter, serial], 8)
    assert [each.name for each in found] == ["serial", "shorter", "short", "wide", "unknown"]


def test_the_longest_is_at_the_head_of_those_that_could_end_last() -> None:
    jobs = [load(f"{seconds} s", 1.0, seconds, 1) for seconds in (300, 1000, 600)]
    assert [each.name for each in longest_first(jobs, 4)] == ["1000 s", "600 s", "300 s"]


def test_a_job_counts_on_the_machines_that_suit_it_best() -> None:
    apart = dataclasses.replace(load("apart", 10.0, 100, 16), network_s=5.0, machines=2, least_machines=2)
    # Alone on 16 machines: 1.25 s of computing, and more traffic than on two; it never takes 15 s.
    serial = load("serial", 1.0, 900, 1)
    assert [each.name for each in longest_first([serial, apart], 16)] == ["apart", "serial"]


def test_without_jobs_there_is_no_order() -> None:
    assert longest_first([], 4) == []
