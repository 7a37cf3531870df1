"""Whatever a line of the ledger holds, it is read as it was written; whatever is damaged is refused."""

from __future__ import annotations

import dataclasses
import json
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.events.ensemble import Delta, RoundPlan
from hpcbal.events.history import Position, RankFacts
from hpcbal.events.line import Line, name_in_file
from hpcbal.events.members import StopRule
from hpcbal.telemetry.ledger.codec import ENVELOPE, Entry, entry_of, plain_of
from hpcbal.telemetry.ledger.registry import LINE_BY_EVENT

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
PLAIN = {
    str: TEXT,
    bool: st.booleans(),
    int: st.integers(-(2**80), 2**80),
    float: st.floats(allow_nan=False, allow_infinity=False),
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


def values_of(hint: Any, length: int | None = None) -> st.SearchStrategy[Any]:
    """All values that an annotation allows; lists have this length."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in PLAIN:
        return PLAIN[hint]
    if hint is type(None):
        return st.none()
    if origin in (Union, types.UnionType):
        return st.one_of([values_of(each, length) for each in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        most = 4 if length is None else length
        return st.lists(values_of(arguments[0]), min_size=length or 0, max_size=most).map(tuple)
    if origin is not None:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=3)
    return facts_of(hint)


@st.composite
def facts_of(draw: st.DrawFn, kind: type[Any]) -> Any:
    """Values of a dataclass, field by field; where fields depend on each other, so that they fit."""
    all_hints = get_type_hints(kind)
    hints = {field.name: all_hints[field.name] for field in dataclasses.fields(kind)}
    if kind is RankFacts:
        size = draw(st.integers(1, 4))
        return RankFacts(**{name: draw(values_of(hint, size)) for name, hint in hints.items()})
    if kind is Delta:
        some = draw(st.floats(0, 1e9))
        return draw(st.sampled_from([Delta(absolute=some), Delta(relative=some)]))
    fields = {name: draw(values_of(hint)) for name, hint in hints.items()}
    if kind is StopRule:
        counts = st.integers(1, 2**80)
        allowed = {
            "mode": st.sampled_from(["max", "min"]),
            "min_delta": st.floats(0, 1e9),
            "max_epochs": counts,
        }
        fields |= {name: draw(values) for name, values in allowed.items()}
        fields["patience"] = draw(st.none() | counts)
    if kind is RoundPlan:
        dnns = {group.dnn_id for group in fields["groups"]}
        fields["start"] |= {dnn: draw(values_of(Position)) for dnn in dnns}
        fields["epochs"] |= dict.fromkeys(dnns, draw(PLAIN[int]))
    return kind(**fields)


LINES = st.sampled_from(list(LINE_BY_EVENT.values())).flatmap(facts_of)


@given(LINES, st.integers(0, 2**60))
def test_a_line_is_read_as_it_was_written(line: Line, seq: int) -> None:
    entry = Entry(seq, "2025-01-31T12:00:00.000Z", line)
    assert entry_of(json.loads(json.dumps(plain_of(entry), allow_nan=False))) == entry


@given(LINES, st.data())
def test_a_field_of_any_other_value_is_refused_or_read(line: Line, data: st.DataObject) -> None:
    """Never anything but a ValueError of one line."""
    plain = json.loads(json.dumps(plain_of(Entry(0, "2025-01-31T12:00:00.000Z", line))))
    name = data.draw(st.sampled_from(sorted(plain)))
    plain[name] = data.draw(JSON)
    refusal = ""
    try:
        entry_of(plain)
    except ValueError as error:
        refusal = str(error)
    assert "\n" not in refusal


@given(LINES, st.data())
def test_a_line_with_a_field_too_many_is_refused(line: Line, data: st.DataObject) -> None:
    plain = plain_of(Entry(0, "2025-01-31T12:00:00.000Z", line))
    name = data.draw(TEXT.filter(lambda name: name not in plain))
    with pytest.raises(ValueError, match="unknown field"):
        entry_of({**plain, name: data.draw(JSON)})


@given(LINES)
def test_a_line_that_lacks_a_field_without_a_default_is_refused(line: Line) -> None:
    plain = plain_of(Entry(0, "2025-01-31T12:00:00.000Z", line))
    first = name_in_file(line.field_names()[0])
    for name in {*ENVELOPE, first}:
        with pytest.raises(ValueError, match=f"{name} is (absent|missing)"):
            entry_of({key: value for key, value in plain.items() if key != name})
