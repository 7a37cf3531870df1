"""Traces are checked, and survive their file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from traces import trace_of_steps, write_trace

from hpcbal.forecast.trace import Resource, Trace, TracedOperation, TraceError
from hpcbal.forecast.trace_file import lines_of_trace, read_trace, trace_of_lines

OPERATIONS = (
    TracedOperation("receive", Resource.DOWNLINK, (), 1000, 1, "w"),
    TracedOperation("compute", Resource.WORKER, (0,)),
    TracedOperation("send", Resource.UPLINK, (1,), 500, 1, "w"),
    TracedOperation("apply", Resource.SERVER, (2,), 0, 1, "w"),
)
TRACE = trace_of_steps(OPERATIONS, [[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 1 / 3]], 16)
HEADER = '{"trace":"hpcbal","version":1,"samples_per_step":1}\n'
OPERATION = '{"op":"a","resource":"worker"}\n'
DOWNLINK = '{"op":"a","resource":"downlink"}\n'


def test_a_trace_sums_up_what_a_step_needs() -> None:
    assert (TRACE.num_steps, TRACE.num_servers) == (2, 2)
    assert TRACE.num_bytes(Resource.DOWNLINK) == TRACE.num_bytes(Resource.DOWNLINK, 1) == 1000
    assert TRACE.num_bytes(Resource.UPLINK, 0) == 0


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace.jsonl", TRACE)
    again = read_trace(tmp_path / "trace.jsonl")
    assert again.operations == TRACE.operations
    assert again.samples_per_step == TRACE.samples_per_step
    assert np.array_equal(again.durations_s, TRACE.durations_s)
    assert again.downlink_orders is None


def test_the_order_of_each_step_is_read_as_it_was_written() -> None:
    operations = (TracedOperation("a", Resource.DOWNLINK), TracedOperation("b", Resource.DOWNLINK))
    trace = Trace(operations, np.ones((2, 2)), downlink_orders=np.array([[1, 0], [0, 1]]))
    again = trace_of_lines(lines_of_trace(trace), "t")
    assert again.downlink_orders is not None
    assert again.downlink_orders.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("orders", "message"),
    [([[0]], "have the shape"), ([[0], [1]], "step 1: its order of downlink operations is \\[1\\]")],
)
def test_an_order_has_every_downlink_operation_once(orders: list[list[int]], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        Trace(OPERATIONS, TRACE.durations_s, downlink_orders=np.array(orders))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "this trace is empty"),
        (["{"], "t:1: this line is no JSON"),
        (["[]"], "t:1: got list, expected a JSON object"),
        (["{}"], 'first line must have "trace": "hpcbal"'),
        (['{"trace":"hpcbal","version":2}'], "version 2, but this hpcbal reads version 1"),
        (['{"trace":"hpcbal","version":1}'], "samples_per_step: got None, expected int"),
        (['{"trace":"hpcbal","version":1,"samples_per_step":true}'], "got True, expected int"),
        (['{"trace":"hpcbal","version":1,"samples_per_step":1,"x":1}'], "unknown key 'x', allowed: samples"),
        ([HEADER, "{}"], "t:2: expected a line with 'op' or 'step'"),
        ([HEADER, OPERATION], "the trace has no steps"),
        ([HEADER, OPERATION, '{"step":[1]}', OPERATION], "t:4: an operation after the first step"),
        ([HEADER, OPERATION, '{"step":[1,2]}'], "the step has 2 durations, but there are 1 operations"),
        ([HEADER, OPERATION, '{"step":["1"]}'], "expected a list of seconds"),
        ([HEADER, OPERATION, '{"step":[1],"order":[0]}'], "order: got [0], expected the positions"),
        ([HEADER, DOWNLINK, '{"step":[1],"order":[0]}', '{"step":[1]}'], "in every step of the trace, or in"),
        ([HEADER, OPERATION, '{"step":[-1]}'], "t: step 0, operation 'a': duration -1.0"),
        ([HEADER, OPERATION, '{"step":[NaN]}'], "duration nan"),
        ([HEADER, OPERATION, '{"step":[1e308]}'], "duration 1e+308; allowed: 0 to 1e+09 s"),
        (
            [HEADER, OPERATION, '{"step":[1' + "0" * 400 + "]}"],
            "a duration is too large; allowed: 0 to 1e+09 s",
        ),
        ([HEADER, '{"op":"a","resource":"uplink","server":100000000}', '{"step":[1]}'], "allowed: 0 to 4095"),
        (
            [HEADER, '{"op":"a","resource":"uplink","bytes":1' + "0" * 400 + "}", '{"step":[1]}'],
            "bytes: got 1000",
        ),
        (
            [HEADER.replace(":1}", ":1" + "0" * 400 + "}"), OPERATION, '{"step":[1]}'],
            "allowed: 1 to 9007199254740992",
        ),
        (["[" * 100_000], "nested too deeply"),
        ([HEADER, '{"step":[]}'], "the trace has no operations"),
        ([HEADER, '{"op":"a","resource":"disk"}'], "got 'disk', allowed: 'downlink', 'worker'"),
        ([HEADER, '{"op":"a","resource":"worker","after":["x"]}'], "after: expected a list of positions"),
        ([HEADER, '{"op":"a","resource":"worker","bytes":0.5}'], "bytes: got 0.5, expected int"),
        ([HEADER, '{"op":"a","resource":"worker","after":[0]}', '{"step":[1]}'], "only for operations above"),
        (
            [HEADER, '{"op":"a","resource":"worker","bytes":5}', '{"step":[1]}'],
            "bytes: got 5, allowed: 0 for a worker",
        ),
        ([HEADER, '{"op":"a","resource":"worker","server":5}', '{"step":[1]}'], "names server 5"),
        (
            [HEADER, '{"op":"a","resource":"uplink","server":-5}', '{"step":[1]}'],
            "server: got -5, allowed: 0 to 4095",
        ),
        (
            [HEADER, OPERATION, '{"op":"b","resource":"worker","after":[0,0]}', '{"step":[1,1]}'],
            "waits twice",
        ),
    ],
)
def test_a_wrong_line_is_named(lines: list[str], message: str) -> None:
    with pytest.raises(TraceError) as caught:
        trace_of_lines(lines, "t")
    assert message in str(caught.value)
    assert str(caught.value).startswith("t")


def test_defaults_are_left_out_of_the_file() -> None:
    lines = [
        json.loads(line)
        for line in lines_of_trace(trace_of_steps([TracedOperation("a", Resource.WORKER)], [[1.0]]))
    ]
    assert lines[1:] == [{"op": "a", "resource": "worker"}, {"step": [1.0]}]


def test_durations_have_one_column_per_operation() -> None:
    with pytest.raises(TraceError, match="4 operations need one row per step"):
        Trace(OPERATIONS, np.zeros((2, 3)))
    with pytest.raises(TraceError, match="samples_per_step is 0"):
        Trace(OPERATIONS, np.zeros((2, 4)), 0)


def test_files_that_cannot_be_used_are_errors_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot read the trace: No such file"):
        read_trace(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="no UTF-8 text"):
        read_trace(tmp_path / "binary")
