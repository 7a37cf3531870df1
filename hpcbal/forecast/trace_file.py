"""Read and write traces as JSON lines: a header, the operations, the steps.

{"trace": "hpcbal", "version": 1, "samples_per_step": 32}
{"op": "conv0", "resource": "downlink", "bytes": 37632, "variable": "conv0"}
{"op": "conv0 forward", "resource": "worker", "after": [0]}
{"step": [0.0012, 0.0481], "order": [0]}
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hpcbal.forecast.trace import LONGEST_S, Resource, Trace, TracedOperation, TraceError

VERSION = 1
_HEADER = {"trace", "version", "samples_per_step", "splits"}
_OPERATION = {"op", "resource", "after", "bytes", "server", "variable"}
Value = TypeVar("Value", bound=object)


def lines_of_trace(trace: Trace) -> Iterator[str]:
    """The lines of a trace, each with its line end. Keys with their default are left out."""
    header = {"trace": "hpcbal", "version": VERSION, "samples_per_step": trace.samples_per_step}
    yield _line({**header, "splits": True} if trace.splits else header)
    for operation in trace.operations:
        record: dict[str, Any] = {"op": operation.name, "resource": operation.resource.value}
        if operation.waits_for:
            record["after"] = list(operation.waits_for)
        if operation.num_bytes:
            record["bytes"] = operation.num_bytes
        if operation.server:
            record["server"] = operation.server
        if operation.variable:
            record["variable"] = operation.variable
        yield _line(record)
    orders = None if trace.downlink_orders is None else trace.downlink_orders.tolist()
    for step, row in enumerate(trace.durations_s.tolist()):
        yield _line({"step": row} if orders is None else {"step": row, "order": orders[step]})


def trace_of_lines(lines: Iterable[str], where: str) -> Trace:
    """The trace that the lines describe; the inverse of `lines_of_trace`.

    Args:
        lines: of a file.
        where: the file's name, for errors.

    Raises:
        TraceError: a line is no JSON object, has keys that are not known, misses one, or has a value of
        another type;
            or the trace is of another version, ends early, or does not describe steps that can be run.
    """
    reader = _Reader(where)
    for number, line in enumerate(lines, start=1):
        reader.read(number, line)
    return reader.trace()


def read_trace(path: Path) -> Trace:
    """Read a trace.

    Raises:
        TraceError: the file cannot be read, or its lines are wrong; see `trace_of_lines`.
    """
    try:
        with path.open(encoding="utf-8") as file:
            return trace_of_lines(file, str(path))
    except OSError as error:
        raise TraceError(f"{path}: cannot read the trace: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: this is not a trace: it is no UTF-8 text") from error


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n"


class _Reader:
    """Collects lines, and names the line of an error."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._at = where
        self._samples_per_step: int | None = None
        self._splits = False
        self._operations: list[TracedOperation] = []
        self._steps: list[list[float]] = []
        self._orders: list[list[int]] = []

    def read(self, number: int, line: str) -> None:
        self._at = f"{self._where}:{number}"
        try:
            record = json.loads(line)
        except ValueError as error:
            raise TraceError(f"{self._at}: this line is no JSON; the trace may be cut off") from error
        except RecursionError as error:
            raise TraceError(f"{self._at}: this is not a line of a trace: it is nested too deeply") from error
        if not isinstance(record, dict):
            raise TraceError(f"{self._at}: got {type(record).__name__}, expected a JSON object")
        if self._samples_per_step is None:
            self._read_header(record)
        elif "op" in record:
            self._read_operation(record)
        elif "step" in record:
            self._read_step(record)
        else:
            raise TraceError(f"{self._at}: expected a line with 'op' or 'step', got {sorted(record)}")

    def trace(self) -> Trace:
        if self._samples_per_step is None:
            raise TraceError(f"{self._where}: this trace is empty")
        if not self._steps:
            raise TraceError(f"{self._where}: the trace has no steps; record at least one")
        try:
            return Trace(
                tuple(self._operations),
                np.array(self._steps, dtype=np.float64),
                self._samples_per_step,
                self._splits,
                np.array(self._orders, dtype=np.int64) if self._orders else None,
            )
        except TraceError as error:
            raise TraceError(f"{self._where}: {error}") from error

    def _read_header(self, record: dict[str, Any]) -> None:
        if record.get("trace") != "hpcbal":
            raise TraceError(f'{self._at}: this is not a trace: the first line must have "trace": "hpcbal"')
        if record.get("version") != VERSION or record["version"] is True:
            raise TraceError(
                f"{self._at}: the trace has version {record.get('version')!r}, "
                f"but this hpcbal reads version {VERSION}"
            )
        self._check_keys(record, _HEADER)
        self._samples_per_step = self._get(record, "samples_per_step", int)
        self._splits = self._get(record, "splits", bool, False)

    def _read_operation(self, record: dict[str, Any]) -> None:
        self._check_keys(record, _OPERATION)
        if self._steps:
            raise TraceError(
                f"{self._at}: an operation after the first step; list all operations before the steps"
            )
        resource = self._get(record, "resource", str)
        if resource not in set(Resource):
            allowed = ", ".join(f"'{name}'" for name in Resource)
            raise TraceError(f"{self._at}: resource: got {resource!r}, allowed: {allowed}")
        after = self._get(record, "after", list, [])
        if not all(type(before) is int for before in after):
            raise TraceError(
                f"{self._at}: after: expected a list of positions of operations, got {reprlib.repr(after)}"
            )
        self._operations.append(
            TracedOperation(
                self._get(record, "op", str),
                Resource(resource),
                tuple(after),
                self._get(record, "bytes", int, 0),
                self._get(record, "server", int, 0),
                self._get(record, "variable", str, ""),
            )
        )

    def _read_step(self, record: dict[str, Any]) -> None:
        self._check_keys(record, {"step", "order"})
        row = self._get(record, "step", list)
        if not all(type(duration) in (int, float) for duration in row):
            raise TraceError(f"{self._at}: step: expected a list of seconds")
        if len(row) != len(self._operations):
            raise TraceError(
                f"{self._at}: the step has {len(row)} durations, but there are "
                f"{len(self._operations)} operations"
            )
        if self._steps and bool(self._orders) != ("order" in record):
            raise TraceError(f"{self._at}: order: give it in every step of the trace, or in none")
        if "order" in record:
            self._orders.append(self._order(record))
        try:
            self._steps.append([float(duration) for duration in row])
        except OverflowError as error:
            raise TraceError(
                f"{self._at}: step: a duration is too large; allowed: 0 to {LONGEST_S:g} s"
            ) from error

    def _order(self, record: dict[str, Any]) -> list[int]:
        order = self._get(record, "order", list)
        downlinks = [i for i, each in enumerate(self._operations) if each.resource is Resource.DOWNLINK]
        if not all(type(position) is int for position in order) or sorted(order) != downlinks:
            raise TraceError(
                f"{self._at}: order: got {reprlib.repr(order)}, expected the positions of all downlink "
                f"operations, {reprlib.repr(downlinks)}, each once"
            )
        return order

    def _check_keys(self, record: dict[str, Any], allowed: set[str]) -> None:
        unknown = sorted(set(record) - allowed)
        if unknown:
            raise TraceError(f"{self._at}: unknown key {unknown[0]!r}, allowed: {', '.join(sorted(allowed))}")

    def _get(
        self, record: dict[str, Any], key: str, kind: type[Value], default: Value | None = None
    ) -> Value:
        value = record.get(key, default)
        if type(value) is not kind:
            raise TraceError(f"{self._at}: {key}: got {reprlib.repr(value)}, expected {kind.__name__}")
        return value
