"""Models of transfers: parsing, orders, shares of links."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from python_replay import max_min_shares
from traces import like_machines, trace_of_steps

from hpcbal.errors import PolicyError
from hpcbal.forecast import Links, Settings, Topology, simulate
from hpcbal.forecast.cluster import as_they_come, tic
from hpcbal.forecast.overhead import (
    ParsingOverhead,
    fit_overhead,
    separate_parsing,
    with_step_overhead,
)
from hpcbal.forecast.trace import Resource, Trace, TracedOperation


def test_the_fit_finds_the_line_behind_measurements() -> None:
    sizes = [1e3, 1e5, 1e6, 5e6]
    fitted = fit_overhead(sizes, [2e-9 * size + 3e-4 for size in sizes])
    assert (fitted.s_per_byte, fitted.s_per_transfer) == pytest.approx((2e-9, 3e-4))


def test_neither_part_of_the_overhead_is_negative() -> None:
    assert fit_overhead([1, 2], [4, 2]) == ParsingOverhead(0.0, 3.0)
    assert fit_overhead([1, 3], [0, 4]) == ParsingOverhead(1.2, 0.0)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 10)), min_size=2, max_size=8))
def test_no_other_non_negative_line_fits_better(points: list[tuple[float, float]]) -> None:
    sizes, seconds = np.array(points).T
    if np.ptp(sizes) < 1e-3:
        return
    fitted = fit_overhead(list(sizes), list(seconds))

    def error(alpha: float, beta: float) -> float:
        return float(((alpha * sizes + beta - seconds) ** 2).sum())

    best = error(fitted.s_per_byte, fitted.s_per_transfer)
    for alpha in (-0.01, 0.0, 0.01):
        for beta in (-0.01, 0.0, 0.01):
            near = (max(fitted.s_per_byte + alpha, 0), max(fitted.s_per_transfer + beta, 0))
            assert best <= error(*near) + 1e-6


def test_a_weight_counts_like_as_many_measurements() -> None:
    weighted = fit_overhead([1, 2, 5], [3, 4, 9], [1, 3, 2])
    repeated = fit_overhead([1, 2, 2, 2, 5, 5], [3, 4, 4, 4, 9, 9])
    assert (weighted.s_per_byte, weighted.s_per_transfer) == pytest.approx(
        (repeated.s_per_byte, repeated.s_per_transfer)
    )


def test_one_size_cannot_be_fitted() -> None:
    with pytest.raises(PolicyError, match="at least two sizes"):
        fit_overhead([5, 5], [1, 2])


def test_parsing_is_an_operation_at_the_receiver_that_others_wait_for() -> None:
    trace = trace_of_steps(
        [
            TracedOperation("d", Resource.DOWNLINK, (), 100),
            TracedOperation("c", Resource.WORKER, (0,)),
            TracedOperation("u", Resource.UPLINK, (1,), 200, 0, "w"),
            TracedOperation("s", Resource.SERVER, (2,)),
        ],
        [[5.0, 1.0, 1.5, 1.0]],
    )
    parsed = separate_parsing(trace, ParsingOverhead(0.01, 1.0))
    assert [(o.name, o.resource, o.waits_for) for o in parsed.operations] == [
        ("d", Resource.DOWNLINK, ()),
        ("parse d", Resource.WORKER, (0,)),
        ("c", Resource.WORKER, (1,)),
        ("u", Resource.UPLINK, (2,)),
        ("parse u", Resource.SERVER, (3,)),
        ("s", Resource.SERVER, (4,)),
    ]
    assert parsed.durations_s.tolist() == [[3.0, 2.0, 1.0, 0.0, 3.0, 1.0]]
    assert separate_parsing(trace, ParsingOverhead()) is trace


def test_parsing_keeps_the_order_of_each_step() -> None:
    operations = (TracedOperation("a", Resource.DOWNLINK), TracedOperation("b", Resource.DOWNLINK))
    trace = Trace(operations, np.ones((1, 2)), downlink_orders=np.array([[1, 0]]))
    parsed = separate_parsing(trace, ParsingOverhead(0.0, 0.5))
    assert parsed.downlink_orders is not None
    assert [parsed.operations[position].name for position in parsed.downlink_orders[0]] == ["b", "a"]


def test_the_overhead_of_a_step_comes_after_all_its_operations() -> None:
    trace = trace_of_steps(
        [
            TracedOperation("d", Resource.DOWNLINK, (), 100),
            TracedOperation("c", Resource.WORKER, (0,)),
            TracedOperation("u", Resource.UPLINK, (1,), 100),
            TracedOperation("e", Resource.WORKER, (1,)),
        ],
        [[0.0, 1.0, 0.0, 0.5], [0.0, 2.0, 0.0, 0.5]],
    )
    longer = with_step_overhead(trace, 0.25)
    assert longer.operations[-1] == TracedOperation("step overhead", Resource.DELAY, (2, 3))
    assert longer.durations_s[:, -1].tolist() == [0.25, 0.25]
    for each, end_s in ((trace, 4.0), (longer, 4.25)):
        one = Trace(each.operations, each.durations_s[1:])
        assert simulate(one, like_machines(1, 1, 100.0), Settings(1)).end_s == pytest.approx(end_s)
    slow = Topology((Links(100.0, 100.0, slowness=2.0),), (Links(100.0, 100.0),))
    one = Trace(longer.operations, longer.durations_s[1:])
    assert simulate(one, slow, Settings(1)).end_s == pytest.approx(
        6.25
    )  # computing 4 s, and the same overhead
    assert with_step_overhead(trace, 0.0) is trace
    with pytest.raises(PolicyError, match="got -1 s; it must be finite and at least 0"):
        with_step_overhead(trace, -1)


def layers(waits: list[tuple[int, ...]]) -> list[TracedOperation]:
    """Transfers c, b, a, in this order, and operations that wait for them or for earlier operations."""
    transfers = [TracedOperation(name, Resource.DOWNLINK, (), 1) for name in "cba"]
    return [*transfers, *(TracedOperation("op", Resource.WORKER, wait) for wait in waits)]


def test_tic_sends_the_layers_of_a_chain_in_the_order_of_the_chain() -> None:
    chain = layers([(2,), (1, 3), (0, 4)])
    assert tic(chain) == [2, 1, 0]
    assert as_they_come(chain) == [0, 1, 2]


def test_tic_prefers_the_branch_that_needs_fewer_transfers() -> None:
    # One operation needs b and a; another needs all three.
    assert tic(layers([(1, 2), (0, 3)])) == [1, 2, 0]


def test_one_server_is_shared_equally() -> None:
    assert max_min_shares([(w, 0) for w in range(4)], [100.0] * 4, [100.0]) == [25.0] * 4


@pytest.mark.parametrize("num_others", range(6))
def test_two_servers_are_shared_by_the_rule_of_the_paper(num_others: int) -> None:
    # Worker 0 alone uses server 0; it competes with the others at server 1.
    connections = [(0, 0), *((w, 1) for w in range(num_others + 1))]
    shares = max_min_shares(connections, [1.0] * (num_others + 1), [1.0, 1.0])
    equal = 1 / (num_others + 1)
    expected = (1 - equal) if num_others else 0.5
    assert shares[0] == pytest.approx(expected)
    assert shares[1:] == pytest.approx([equal if num_others else 0.5] * (num_others + 1))


def test_what_a_slow_worker_cannot_use_is_left_to_the_others() -> None:
    assert max_min_shares([(0, 0), (1, 0), (2, 0)], [10.0, 1000.0, 1000.0], [100.0]) == [10.0, 45.0, 45.0]


@given(st.data())
def test_shares_are_max_min_fair(data: st.DataObject) -> None:
    num_workers, num_servers = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    capacity = st.floats(0.5, 50)
    workers = data.draw(st.lists(capacity, min_size=num_workers, max_size=num_workers))
    servers = data.draw(st.lists(capacity, min_size=num_servers, max_size=num_servers))
    pairs = st.tuples(st.integers(0, num_workers - 1), st.integers(0, num_servers - 1))
    connections = data.draw(st.lists(pairs, unique=True, min_size=1))
    shares = max_min_shares(connections, workers, servers)
    used = [[0.0] * num_workers, [0.0] * num_servers]
    for connection, share in zip(connections, shares, strict=True):
        for end in (0, 1):
            used[end][connection[end]] += share
    limits = [workers, servers]
    for end in (0, 1):
        assert all(u <= limit * (1 + 1e-9) for u, limit in zip(used[end], limits[end], strict=True))
    for connection, share in zip(connections, shares, strict=True):
        # Each connection has a full link on which no other gets more: the definition of max-min fairness.
        assert any(
            used[end][connection[end]] >= limits[end][connection[end]] * (1 - 1e-9)
            and all(
                other <= share * (1 + 1e-9)
                for pair, other in zip(connections, shares, strict=True)
                if pair[end] == connection[end]
            )
            for end in (0, 1)
        )
