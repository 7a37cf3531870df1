"""Traces from what a worker and a server of hpcbal's own engine record."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import like_machines

from hpcbal.forecast.engine_trace import EngineRecordError, EngineStep, Messages, ServiceKey, trace_of_engine
from hpcbal.forecast.simulation import Settings, simulate
from hpcbal.forecast.trace import Resource, on_servers
from hpcbal.forecast.trace_file import lines_of_trace, trace_of_lines

RATE = 1000.0
APPLY_S, ANSWER_S, PREPARE_S, COMPUTE_S = 0.05, 0.02, 0.1, 2.0


def recorded(
    num_steps: int = 3, rate: float = RATE, latency_s: float = 0.0, **changes: int
) -> tuple[list[EngineStep], dict[ServiceKey, float]]:
    """Steps as a worker alone would take them: 500 bytes of updates, a request of 10, 400 of parameters.

    The updates leave while the worker gathers samples; the request goes behind them.
    """
    sizes = {"push": 500, "request": 10, "answer": 400, **changes}
    steps, services, now_s = [], {}, 0.0
    for number in range(num_steps):
        asks_s = now_s + PREPARE_S
        push_arrives_s = now_s + sizes["push"] / rate
        request_arrives_s = max(push_arrives_s, asks_s) + sizes["request"] / rate
        answered_s = max(push_arrives_s + APPLY_S, request_arrives_s) + ANSWER_S
        has_s = answered_s + sizes["answer"] / rate + latency_s
        pull, push = 2 * number + 1, 2 * number
        services["tables", pull, True], services["tables", push, False] = ANSWER_S, APPLY_S
        messages = Messages(pull, sizes["request"], sizes["answer"], push, sizes["push"])
        steps.append(EngineStep(now_s, asks_s, has_s, has_s + COMPUTE_S, 8, {"tables": messages}))
        now_s = has_s + COMPUTE_S
    return steps, services


@settings(deadline=None, max_examples=30)
@given(
    st.floats(100.0, 1e5),
    st.floats(0.0, 0.5),
    st.integers(1, 5000),
    st.integers(1, 500),
    st.integers(1, 5000),
)
def test_one_worker_is_forecast_as_it_was_recorded(
    rate: float, latency_s: float, push: int, request: int, answer: int
) -> None:
    steps, services = recorded(4, rate, latency_s, push=push, request=request, answer=answer)
    trace = trace_of_engine(steps, services, rate)
    replay = simulate(trace, like_machines(1, 1, rate), Settings(20))
    assert 1 / replay.steps_per_s(0) == pytest.approx(steps[0].ends_s - steps[0].begins_s)


def test_operations_wait_for_what_the_engine_waits_for() -> None:
    trace = trace_of_engine(*recorded(), RATE)
    names = [operation.name for operation in trace.operations]
    waits = {each.name: [names[before] for before in each.waits_for] for each in trace.operations}
    assert waits == {
        "send updates of tables": [],
        "apply updates of tables": ["send updates of tables"],
        "gather samples": [],
        "ask for tables": ["gather samples"],
        "answer for tables": ["apply updates of tables", "ask for tables"],
        "latency of tables": ["answer for tables"],
        "send tables": ["latency of tables"],
        "compute": ["send tables"],
    }
    assert trace.splits
    assert trace.samples_per_step == 8
    assert trace.num_bytes(Resource.UPLINK) == 510
    assert trace.num_bytes(Resource.DOWNLINK) == 400
    assert "".join(lines_of_trace(trace_of_lines(lines_of_trace(trace), "a"))) == "".join(
        lines_of_trace(trace)
    )


def test_a_route_of_rows_goes_beside_that_of_tables() -> None:
    steps, services = recorded()
    rows = Messages(100, 20, 50, None)
    services["rows", 100, True] = 0.01
    both = [replace(step, routes={**step.routes, "rows": rows}) for step in steps]
    trace = trace_of_engine(both, services, RATE)
    names = [operation.name for operation in trace.operations]
    assert "send updates of rows" not in names  # nothing was pushed to them
    assert trace.operations[-1].waits_for == (names.index("send rows"), names.index("send tables"))
    assert on_servers(trace, 3).num_bytes(Resource.DOWNLINK) == 450


def test_latency_is_what_bytes_and_work_do_not_explain() -> None:
    trace = trace_of_engine(*recorded(latency_s=0.25), RATE)
    names = [operation.name for operation in trace.operations]
    assert trace.durations_s[:, names.index("answer for tables")] == pytest.approx([ANSWER_S] * 3)
    assert trace.durations_s[:, names.index("latency of tables")] == pytest.approx([0.25] * 3)


@pytest.mark.parametrize("num_servers", [1, 2, 4])
def test_more_servers_share_the_work_and_not_the_latency(num_servers: int) -> None:
    trace = on_servers(trace_of_engine(*recorded(latency_s=0.25), RATE), num_servers)
    of = {resource: trace.positions(resource) for resource in Resource}
    assert trace.durations_s[:, of[Resource.DELAY]] == pytest.approx(np.full((3, num_servers), 0.25))
    work_s = trace.durations_s[:, of[Resource.SERVER]].sum(axis=1)
    assert work_s == pytest.approx([APPLY_S + ANSWER_S] * 3)
    waits = {trace.operations[i].server: trace.operations[i].waits_for for i in of[Resource.DELAY]}
    assert {server: trace.operations[answer].server for server, (answer,) in waits.items()} == {
        server: server for server in range(num_servers)
    }


def test_with_latency_two_routes_are_forecast_as_they_were_recorded() -> None:
    # Both requests leave at once; each answer takes 0.01 s of work, then all of the latency.
    steps, services = recorded(latency_s=0.25)
    services |= {("rows", 100 + step, True): 0.01 for step in range(len(steps))}
    longer = [
        replace(each, routes={**each.routes, "rows": Messages(100 + i, 20, 50, None)}, has_s=each.has_s + 0.1)
        for i, each in enumerate(steps)
    ]
    trace = trace_of_engine(longer, services, RATE)
    replay = simulate(replace(trace, splits=False), like_machines(1, 1, RATE), Settings(20))
    step_s = longer[0].has_s - longer[0].begins_s + longer[0].ends_s - longer[0].has_s
    assert 1 / replay.steps_per_s(0) == pytest.approx(step_s)


def test_steps_unlike_most_are_left_out() -> None:
    steps, services = recorded(5)
    steps[1] = replace(steps[1], num_samples=3)
    messages = steps[3].routes["tables"]
    steps[3] = replace(steps[3], routes={"tables": replace(messages, push=None, push_bytes=0)})
    assert trace_of_engine(steps, services, RATE).num_steps == 3


def test_bandwidth_and_latency_are_told_apart_where_bytes_differ() -> None:
    steps: list[EngineStep] = []
    services: dict[ServiceKey, float] = {}
    for size in (100, 5000, 20000):
        found, served = recorded(1, latency_s=0.3, push=1, request=1, answer=size)
        number = len(steps)
        messages = replace(found[0].routes["tables"], pull=2 * number + 1, push=2 * number)
        steps.append(replace(found[0], routes={"tables": messages}))
        services |= {("tables", 2 * number + key[1], key[2]): seconds for key, seconds in served.items()}
    trace = trace_of_engine(steps, services)
    down = trace.positions(Resource.DOWNLINK)
    moved = np.array([100, 5000, 20000])
    assert trace.durations_s[:, down].ravel() == pytest.approx(moved / RATE, rel=1e-6)


def test_of_steps_with_like_bytes_all_of_the_time_on_the_way_counts_as_transfer() -> None:
    steps, services = recorded(push=1, request=1, answer=10_000)
    trace = trace_of_engine(steps, services)
    links = trace.positions(Resource.DOWNLINK) + trace.positions(Resource.UPLINK)
    waited = steps[0].has_s - steps[0].begins_s
    assert trace.durations_s[0, links].sum() == pytest.approx(waited - APPLY_S - ANSWER_S)


def test_records_that_do_not_fit_are_named() -> None:
    steps, services = recorded()
    with pytest.raises(EngineRecordError, match="no whole step was recorded; record more steps"):
        trace_of_engine([], services, RATE)
    del services["tables", 3, True]
    with pytest.raises(EngineRecordError, match=r"no record of request \('tables', 3, True\)"):
        trace_of_engine(steps, services, RATE)
    steps, services = recorded()
    at_once = [replace(step, asks_s=step.begins_s, has_s=step.begins_s) for step in steps]
    with pytest.raises(EngineRecordError, match="the speed of links cannot be told"):
        trace_of_engine(at_once, services)
