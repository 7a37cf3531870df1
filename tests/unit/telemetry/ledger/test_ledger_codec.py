"""Lines of a ledger are decoded strictly: every kind of damage gives one sentence."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from ledger_lines import a, entry, plan_of

from hpcbal.events.ensemble import EpochDone, StartRound
from hpcbal.events.history import EpochFacts, RankFacts
from hpcbal.events.line import Line, name_in_file
from hpcbal.telemetry.ledger.codec import ENVELOPE, entry_of, plain_of
from hpcbal.telemetry.ledger.registry import LINE_BY_EVENT
from hpcbal.telemetry.ledger.run import RunStartedLine

RANKS = RankFacts((0.0, 1.0), (1.0, 1.0), (0.5, 0.0), (8, 8), (1.0, 1.0))
EPOCH = a(EpochDone, dnn_id="a", seconds=2.5, facts=a(EpochFacts, ranks=RANKS))
ROUND = StartRound(plan_of({"a": (0, 1), "b": (2,)}))


def subclasses(base: type) -> Iterator[type]:
    for kind in base.__subclasses__():
        yield kind
        yield from subclasses(kind)


def test_every_kind_is_registered_under_a_name_of_its_own() -> None:
    # With slots a dataclass is made twice; only the one that its module holds counts.
    lines = {kind.__qualname__ for kind in subclasses(Line) if kind.event}
    assert {kind.__qualname__ for kind in LINE_BY_EVENT.values()} == lines
    assert [kind.event for kind in LINE_BY_EVENT.values()] == list(LINE_BY_EVENT)


@pytest.mark.parametrize("kind", [*LINE_BY_EVENT.values(), EpochFacts, RankFacts])
def test_a_kind_is_frozen_slotted_and_has_no_field_of_the_envelope(kind: Any) -> None:
    assert dataclasses.is_dataclass(kind)
    assert "__slots__" in vars(kind)
    assert not {"schema", "seq", "time", "event"} & set(kind.field_names())
    assert kind.__dataclass_params__.frozen


def damaged(line: Line, **changes: Any) -> dict[str, Any]:
    """The plain line with some fields changed (`facts__wait_s`: inside); ... removes one."""
    plain: dict[str, Any] = json.loads(json.dumps(plain_of(entry(line))))
    for path, value in changes.items():
        *inside, name = path.split("__")
        target = plain
        for part in inside:
            target = target[int(part) if part.isdigit() else part]
        if value is ...:
            del target[name]
        else:
            target[name] = value
    return plain


def test_an_epoch_from_before_work_was_recorded_is_read() -> None:
    plain = damaged(
        EPOCH,
        facts__ranks__work=...,
        facts__ranks__waited_s=...,
        facts__ranks__slowest_work=...,
    )
    assert entry_of(plain).line == EPOCH


DAMAGE = {
    "no schema": (damaged(EPOCH, schema=...), "schema is absent, allowed: 2"),
    "a schema to come": (damaged(EPOCH, schema=3), "schema is 3, allowed: 2"),
    "true for a schema": (damaged(EPOCH, schema=True), "schema is true, allowed: 2"),
    "null seq": (damaged(EPOCH, seq=None), "seq is null, allowed: a whole number from 0 on"),
    "negative seq": (damaged(EPOCH, seq=-1), "seq is -1, allowed: a whole number from 0 on"),
    "text for seq": (damaged(EPOCH, seq="1"), 'seq is "1", allowed: a whole number from 0 on'),
    "no time": (damaged(EPOCH, time=...), "time is absent, allowed: a time like 2025-01-31T12:00:00.000Z"),
    "no such time": (damaged(EPOCH, time="noon"), 'time is "noon", allowed: a time like'),
    "a time of no zone": (damaged(EPOCH, time="2025-01-31T12:00:00"), "allowed: a time like"),
    "no event": (damaged(EPOCH, event=...), "event is absent, allowed: run-started, "),
    "another event": (damaged(EPOCH, event="epoch-began"), 'event is "epoch-began", allowed: run-started, '),
    "a list for the event": (damaged(EPOCH, event=["epoch-done"]), 'event is ["epoch-done"], allowed: '),
    "a missing field": (damaged(EPOCH, dnn=...), "epoch-done: field dnn is missing"),
    "an unknown field": (
        damaged(EPOCH, speed=1),
        "epoch-done: unknown field speed, allowed: dnn, pass_index, metrics, seconds, busy_s, offered_slot, "
        "facts, balancing_would_save, straggler",
    ),
    "a missing field inside": (damaged(EPOCH, facts__wait_s=...), "field facts.wait_s is missing"),
    "an unknown field inside": (damaged(EPOCH, facts__speed=1), "epoch-done: unknown field facts.speed"),
    "text for a number": (damaged(EPOCH, seconds="2.5"), 'seconds is "2.5", allowed: a number'),
    "null for a whole number": (
        damaged(EPOCH, pass_index=None),
        "pass_index is null, allowed: a whole number",
    ),
    "null for text": (damaged(EPOCH, dnn=None), "dnn is null, allowed: text"),
    "NaN for a number": (damaged(EPOCH, seconds=float("nan")), "seconds is NaN, allowed: a finite number"),
    "true for a number": (damaged(EPOCH, pass_index=True), "pass_index is true, allowed: a whole number"),
    "a broken number": (damaged(EPOCH, pass_index=1.5), "pass_index is 1.5, allowed: a whole number"),
    "a number for text": (damaged(EPOCH, dnn=7), "dnn is 7, allowed: text"),
    "a number for an object": (damaged(EPOCH, metrics=7), "metrics is 7, allowed: an object"),
    "a list for an object": (damaged(EPOCH, facts=[1]), "facts is [1], allowed: an object"),
    "a number for a list": (damaged(EPOCH, facts__ranks__samples=7), "samples is 7, allowed: a list"),
    "text in a list": (
        damaged(EPOCH, facts__ranks__samples=[1, "2"]),
        'facts.ranks.samples.1 is "2", allowed: a whole number',
    ),
    "lists of two lengths": (
        damaged(EPOCH, facts__ranks__samples=[1]),
        "epoch-done: facts.ranks: its lists must have one number for each rank of the group",
    ),
    "a group of no start": (
        damaged(ROUND, plan__start__b=...),
        "round-started: plan: start lacks 'b', which is in groups",
    ),
    "a kind of run to come": (
        damaged(a(RunStartedLine), kind="orchestra"),
        "run-started: kind is \"orchestra\", allowed: 'ensemble'",
    ),
    "a number for a truth": (damaged(a(RunStartedLine), regroup=1), "regroup is 1, allowed: true or false"),
    "much text": (damaged(EPOCH, seconds="x" * 500), f'seconds is "{"x" * 56}..., allowed: a number'),
    "a huge number": (damaged(EPOCH, pass_index=10**30, seconds=""), "seconds is"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_one_clause_with_what_was_found_and_what_is_allowed(damage: str) -> None:
    plain, message = DAMAGE[damage]
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        entry_of(plain)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", LINE_BY_EVENT.values())
def test_an_empty_line_of_any_kind_is_refused(kind: type[Line]) -> None:
    empty = {"schema": 2, "seq": 0, "time": "2025-01-31T12:00:00.000Z", "event": kind.event}
    assert set(empty) == set(ENVELOPE)
    with pytest.raises(
        ValueError, match=f"{kind.event}: field {name_in_file(kind.field_names()[0])} is missing"
    ):
        entry_of(empty)
