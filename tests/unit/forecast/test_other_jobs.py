"""A trace for other numbers of servers and other batch sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import like_machines, trace_of_steps

from hpcbal.errors import PolicyError
from hpcbal.forecast import Resource, Settings, Trace, TracedOperation, simulate
from hpcbal.forecast.trace import interpolated, on_servers, scaled


def job(sizes: list[int], batch_size: int = 10, compute_s: float = 1.0, extra_bytes: int = 0) -> Trace:
    """Receives each variable, computes, and sends and applies updates."""
    names = [f"v{i}" for i in range(len(sizes))]
    down = [
        TracedOperation(f"get {n}", Resource.DOWNLINK, (), s, 0, n) for n, s in zip(names, sizes, strict=True)
    ]
    count = len(sizes)
    up = [
        TracedOperation(f"put {n}", Resource.UPLINK, (count,), s + extra_bytes, 0, n)
        for n, s in zip(names, sizes, strict=True)
    ]
    apply = [
        TracedOperation(f"apply {n}", Resource.SERVER, (count + 1 + i,), 0, 0, n) for i, n in enumerate(names)
    ]
    operations = [*down, TracedOperation("compute", Resource.WORKER, tuple(range(count))), *up, *apply]
    row = [compute_s if o.resource is Resource.WORKER else 0.5 for o in operations]
    return trace_of_steps(operations, [row, [2 * each for each in row]], batch_size)


def held(trace: Trace) -> list[int]:
    return [trace.num_bytes(Resource.DOWNLINK, server) for server in range(trace.num_servers)]


def test_whole_variables_go_to_the_server_that_holds_least() -> None:
    # The sizes of VGG-11's layers in kB: one of them alone is larger than all others ([ASGD] Fig. 23).
    sizes = [7, 295, 1180, 2359, 4719, 9437, 9437, 9437, 411042, 67109, 16384]
    placed = on_servers(job(sizes), 2)
    assert sum(held(placed)) == sum(sizes)
    assert sorted(held(placed)) == [
        sum(sizes) - 411042 - sum_of_its_server(sizes),
        411042 + sum_of_its_server(sizes),
    ]
    by_variable: dict[str, set[int]] = {}
    for operation in placed.operations:
        if operation.variable:
            by_variable.setdefault(operation.variable, set()).add(operation.server)
    assert all(len(servers) == 1 for servers in by_variable.values())
    assert on_servers(placed, 2) is placed


def sum_of_its_server(sizes: list[int]) -> int:
    """Sum up by hand the server of the ninth layer before it came: each layer goes where less is."""
    first, second = 0, 0
    for size in sizes[:8]:
        if first <= second:
            first += size
        else:
            second += size
    return min(first, second)


@given(st.lists(st.integers(0, 100), min_size=3, max_size=9), st.integers(1, 3))
def test_no_byte_is_lost_and_no_server_is_far_above_the_others(sizes: list[int], servers: int) -> None:
    placed = on_servers(job(sizes), servers)
    assert placed.num_servers == servers
    assert sum(held(placed)) == sum(sizes)
    assert max(held(placed)) - min(held(placed)) <= max(sizes)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=4), st.integers(2, 5))
def test_variables_that_split_are_cut_evenly(sizes: list[int], servers: int) -> None:
    one = job(sizes)
    split = on_servers(Trace(one.operations, one.durations_s, 10, splits=True), servers)
    assert split.num_servers == servers
    assert sum(held(split)) == sum(sizes)
    assert max(held(split)) - min(held(split)) <= len(sizes)
    served = [
        each.durations_s[:, each.positions(Resource.SERVER)].sum(axis=1).mean() for each in (split, one)
    ]
    assert served[0] == pytest.approx(served[1])
    for operation in split.operations:
        for before in operation.waits_for:
            other = split.operations[before]
            assert Resource.WORKER in (operation.resource, other.resource) or operation.server == other.server


def test_a_split_job_is_as_many_times_as_fast_where_links_limit() -> None:
    one = job([1200], compute_s=0.0)
    one = Trace(one.operations, np.zeros_like(one.durations_s), 10, splits=True)
    speeds = [
        simulate(on_servers(one, m), like_machines(6, m, 100.0), Settings(60)).steps_per_s(20) for m in (1, 3)
    ]
    assert speeds[1] / speeds[0] == pytest.approx(3.0, rel=0.05)


def test_what_cannot_be_placed_is_named() -> None:
    with pytest.raises(PolicyError, match="has 2 variables, too few for 3 servers"):
        on_servers(job([1, 2]), 3)
    with pytest.raises(PolicyError, match="has 1 variable, too few for 2 servers"):
        on_servers(job([1]), 2)
    with pytest.raises(PolicyError, match="got 0 servers"):
        on_servers(job([1]), 0)
    two = on_servers(job([1, 2]), 2)
    with pytest.raises(PolicyError, match="recorded with 2 servers"):
        on_servers(Trace(two.operations, two.durations_s, 10, splits=True), 3)


def test_operations_without_a_variable_follow_what_they_wait_for() -> None:
    operations = [
        TracedOperation("put a", Resource.UPLINK, (), 10),
        TracedOperation("put b", Resource.UPLINK, (), 20),
        TracedOperation("apply b", Resource.SERVER, (1,)),
    ]
    placed = on_servers(trace_of_steps(operations, [[0, 0, 0]]), 2)
    assert [operation.server for operation in placed.operations] == [0, 1, 1]


def test_another_batch_size_scales_computation_only() -> None:
    trace = scaled(job([5], compute_s=1.0), 25)
    assert trace.samples_per_step == 25
    assert trace.durations_s.tolist() == [[0.5, 2.5, 0.5, 0.5], [1.0, 5.0, 1.0, 1.0]]


def test_two_traces_give_the_line_between_them() -> None:
    small, large = job([5], 10, 1.0), job([5], 30, 2.0, extra_bytes=20)
    for traces in ([small, large], [large, small]):
        middle = interpolated(traces, 20)
        assert middle.samples_per_step == 20
        assert middle.durations_s.mean(axis=0) == pytest.approx([0.75, 1.5 * 1.5, 0.75, 0.75])
        assert middle.num_bytes(Resource.UPLINK) == 15
        assert middle.num_bytes(Resource.DOWNLINK) == 5
    beyond = interpolated([small, large], 50)
    assert beyond.durations_s[:, 1].mean() == pytest.approx(1.5 * 3.0)
    assert interpolated([small, large], 10).durations_s == pytest.approx(small.durations_s)


def test_traces_that_have_no_line_are_refused() -> None:
    with pytest.raises(PolicyError, match="both traces have 10 samples per step"):
        interpolated([job([5]), job([5])], 20)
    with pytest.raises(PolicyError, match="the traces have other operations"):
        interpolated([job([5]), job([5, 6], 20)], 15)


def test_the_parts_of_a_variable_keep_the_order_of_each_step() -> None:
    operations = (
        TracedOperation("a", Resource.DOWNLINK, (), 10),
        TracedOperation("b", Resource.DOWNLINK, (), 10),
    )
    trace = Trace(operations, np.ones((1, 2)), splits=True, downlink_orders=np.array([[1, 0]]))
    split = on_servers(trace, 2)
    assert split.downlink_orders is not None
    parts = [split.operations[position] for position in split.downlink_orders[0]]
    assert [(part.name, part.server) for part in parts] == [("b", 0), ("b", 1), ("a", 0), ("a", 1)]
