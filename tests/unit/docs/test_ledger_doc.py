"""docs/ledger.md says what the classes say."""

from __future__ import annotations

import pytest
from ledger_doc import PATH, meanings_of, render, type_text

from hpcbal.events.ensemble import EpochDone
from hpcbal.events.line import Line
from hpcbal.telemetry.ledger.registry import LINE_BY_EVENT


def test_the_document_is_up_to_date() -> None:
    assert PATH.read_text(encoding="utf-8") == render(), "run: python scripts/ledger_doc.py"


@pytest.mark.parametrize("kind", LINE_BY_EVENT.values())
def test_a_docstring_describes_exactly_the_fields(kind: type[Line]) -> None:
    text, meanings = meanings_of(kind)
    assert text
    assert tuple(meanings) == kind.field_names()
    assert f"### `{kind.event}`" in render()


def test_types_are_in_the_words_of_json() -> None:
    assert type_text(tuple[int, ...]) == "list of whole numbers"
    assert type_text(float | None) == "number or null"
    assert type_text(EpochDone) == "[EpochDone](#epochdone)"
