"""Configurations on some of the machines."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbal.errors import PolicyError
from hpcbal.policies.configuring.cost_model import Configuration, Machine, Problem, epoch_cost
from hpcbal.policies.configuring.heterogeneous import best_heterogeneous
from hpcbal.policies.configuring.trigger import best_within, spread

FAST, SLOW = Machine(1e-4, 4e6), Machine(3e-4, 1e6)


def problem(machines: tuple[Machine, ...]) -> Problem:
    return Problem(machines, 1200, 12, 12, 60, "shared", 8e4, 8e4)


@settings(max_examples=30, deadline=None)
@given(kinds=st.lists(st.sampled_from([FAST, SLOW]), min_size=2, max_size=6), data=st.data())
def test_no_choice_among_the_machines_in_use_is_better(kinds: list[Machine], data: Any) -> None:
    in_use = data.draw(st.sets(st.integers(0, len(kinds) - 1), min_size=2))
    whole = problem(tuple(kinds))
    found = best_within(whole, in_use)
    assert set(found.workers) | set(found.servers) <= in_use
    chosen = sorted(in_use)
    alone = problem(tuple(kinds[i] for i in chosen))
    best_s = epoch_cost(alone, best_heterogeneous(alone).configuration).epoch_s
    assert epoch_cost(whole, found).epoch_s == pytest.approx(best_s, rel=1e-9)


ROLES = ("worker", "server", "standby")


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_spread_keeps_the_proportion_and_every_block(data: Any) -> None:
    count = data.draw(st.integers(2, 9))
    roles = ["worker", "server", *(data.draw(st.sampled_from(ROLES)) for _ in range(count - 2))]
    workers = [i for i, role in enumerate(roles) if role == "worker"]
    servers = [i for i, role in enumerate(roles) if role == "server"]
    blocks, parameters = data.draw(st.integers(len(workers), 40)), data.draw(st.integers(len(servers), 40))
    owned = [0] * count, [0] * count
    for own, members, total in ((owned[0], workers, blocks), (owned[1], servers, parameters)):
        for block in range(total):
            own[members[block % len(members)]] += 1
    current = Configuration.of_blocks(*owned)
    in_use = data.draw(st.sets(st.integers(0, count - 1), min_size=2))
    found = spread(current, in_use)
    assert (sum(found.data_blocks), sum(found.parameter_blocks)) == (blocks, parameters)
    assert set(found.workers) | set(found.servers) <= in_use
    share = len(servers) / (len(workers) + len(servers))
    expected = min(max(1, round(share * len(in_use))), len(in_use) - 1)
    if blocks < len(in_use) - expected or parameters < expected:
        return  # more machines than blocks
    assert len(found.servers) == expected
    for counts in (found.data_blocks, found.parameter_blocks):
        owning = [number for number in counts if number]
        assert max(owning) - min(owning) <= 1
    possible = sum(
        min(len(new), sum(i in in_use for i in old))
        for new, old in ((found.workers, current.workers), (found.servers, current.servers))
    )
    kept = [i for i in in_use if current.roles[i] == found.roles[i] != "standby"]
    assert len(kept) == possible, "as many as can keep their role do"


@pytest.mark.parametrize("in_use", [[], [1], [0, 4], [-1, 2]])
def test_a_worker_and_a_server_are_needed(in_use: list[int]) -> None:
    current = Configuration.of_blocks((6, 6, 0, 0), (0, 0, 6, 6))
    with pytest.raises(PolicyError, match=r"at least 2 of 0\.\.3"):
        spread(current, in_use)
    with pytest.raises(PolicyError, match=r"at least 2 of 0\.\.3"):
        best_within(problem((FAST,) * 4), in_use)


def test_more_machines_are_never_slower() -> None:
    whole = problem((FAST, SLOW, FAST, SLOW))
    costs = {
        subset: epoch_cost(whole, best_within(whole, subset)).epoch_s
        for size in (2, 3, 4)
        for subset in itertools.combinations(range(4), size)
    }
    for small, large in itertools.product(costs, costs):
        if set(small) <= set(large):
            assert costs[large] <= costs[small] * (1 + 1e-9)
