"""Lines of a ledger for tests: only the fields that a test is about are given."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hpcbal.events.ensemble import GroupPlan, RoundPlan
from hpcbal.events.history import Position
from hpcbal.events.line import Facts, Line
from hpcbal.events.members import StopRule
from hpcbal.telemetry.files.json_lines import utc_text
from hpcbal.telemetry.ledger.codec import Entry

Value = TypeVar("Value", bound=Facts)


def a(kind: type[Value], /, **given: Any) -> Value:
    """A line (or a value inside one) of this kind; fields that are not given are zero, empty or None."""
    hints = get_type_hints(kind)
    return kind(**{name: given.pop(name, _nothing(hints[name])) for name in kind.field_names()}, **given)


def entry(line: Line, seq: int = 0, unix_s: float = 1.79e9) -> Entry:
    """A line with its place in a ledger."""
    return Entry(seq, utc_text(unix_s), line)


def plan_of(
    groups: Mapping[str, tuple[int, ...]], epochs: Mapping[str, int] | None = None, **given: Any
) -> RoundPlan:
    """A plan of these groups, which start where the stream begins; DNNs not in `epochs` are new."""
    known = dict.fromkeys(groups, 0) | dict(epochs or {})
    return a(
        RoundPlan,
        groups=tuple(GroupPlan(dnn, tuple(slots)) for dnn, slots in groups.items()),
        start={dnn: Position(0) for dnn in known},
        epochs=known,
        **given,
    )


def _nothing(hint: Any) -> Any:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return None
    if origin is Literal:
        return get_args(hint)[0]
    if origin is tuple:
        return ()
    if origin is not None:
        return {}
    if hint is Position:
        return Position(0)
    if hint is StopRule:
        return StopRule()
    return a(hint) if issubclass(hint, Facts) else hint()
