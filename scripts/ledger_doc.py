#!/usr/bin/env python3
"""Write docs/ledger.md from the docstrings of the ledger's classes: python scripts/ledger_doc.py"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hpcbal.events.line import name_in_file
from hpcbal.telemetry.ledger.codec import LEDGER_SCHEMA
from hpcbal.telemetry.ledger.registry import LINE_BY_EVENT

PATH = Path(__file__).parents[1] / "docs" / "ledger.md"

NAMES = {str: "text", bool: "true or false", int: "whole number", float: "number", type(None): "null"}

HEAD = f"""\
# The ledger

<!-- Written by scripts/ledger_doc.py from the classes of the lines; a test compares them. -->

`ledger.jsonl` in the output directory holds what happened in a run: one JSON object per line. Rank 0 alone
writes it, and only appends. `hpcbal run` reads it to resume, `hpcbal report` to draw the run, and
`hpcbal plan` to learn what starting and saving cost.

Each kind of line is a class in `hpcbal/events/` or `hpcbal/telemetry/ledger/`. The same classes write and
read the file, and those in `hpcbal/events/` are what the state machine of an ensemble takes and gives.
Besides its own fields, every line has these:

| field | type | meaning |
|---|---|---|
| `schema` | whole number | version of the format, {LEDGER_SCHEMA} |
| `seq` | whole number | counts up from 0 over all starts of the run |
| `time` | text | when the line was written, UTC |
| `event` | text | the kind: one of those below |
| `crc32` | text | CRC-32 of the line without this field, the last one; a line without it is read as it is |

Optional fields may be missing. The field `dnn` names a DNN; slots are numbered over all nodes from 0;
names that end in `_s` are seconds. A number that is not finite is null.

## Damage

| what is found | what happens |
|---|---|
| a last line that a kill or a full disk has cut off | dropped; the next start removes it |
| a line that is not whole, or does not fit its checksum | skipped, with one warning for the file |
| lines are missing or repeated (`seq`), or an epoch of a DNN that no earlier line trains | the same warning |
| a line that does not look as described below (a missing field, text for a number) | the same warning |
| such a line in a ledger without checksums, and lines of another schema | refused (exit code 2) |
| no ledger, although there are checkpoints | a warning; training resumes from the checkpoints |
| the file is removed or replaced during a run | the run ends with an error |

The checkpoints, not the ledger, define how far each DNN has come, so a run resumes without the lines that are
lost. If they recorded the end of a DNN, that DNN is checked again; reports omit their content. If you edit
a line, remove its `crc32`.
"""


def render() -> str:
    """The whole document."""
    parts = [HEAD]
    values: dict[str, type] = {}
    module = ""
    for kind in LINE_BY_EVENT.values():
        if kind.__module__ != module:
            module = kind.__module__
            parts.append(f"## {_title(module)}\n")
        parts.append(f"### `{kind.event}`\n\n{_section(kind)}")
        values |= {each.__name__: each for each in _inside(kind)}
    parts.append("## Values inside lines\n")
    parts += [f"### {name}\n\n{_section(value)}" for name, value in sorted(values.items())]
    return "\n".join(parts)


def meanings_of(kind: type) -> tuple[str, Mapping[str, str]]:
    """The text of a docstring, and what it says about each field."""
    text, _, attributes = (inspect.getdoc(kind) or "").partition("\n\nAttributes:\n")
    attributes = attributes.partition("\n\n")[0]
    items = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", attributes, flags=re.MULTILINE)
    return _flat(text, keep_paragraphs=True), {name: _flat(meaning) for name, meaning in items}


def _section(kind: type) -> str:
    text, meanings = meanings_of(kind)
    hints = get_type_hints(kind)
    rows = [
        f"| `{name_in_file(field.name)}` | {type_text(hints[field.name])}{_optional(field)} | "
        f"{meanings[field.name]} |"
        for field in dataclasses.fields(kind)
    ]
    return "\n".join([text, "", "| field | type | meaning |", "|---|---|---|", *rows, ""])


def _optional(field: dataclasses.Field[Any]) -> str:
    return "" if field.default is dataclasses.MISSING else ", optional"


def _title(module: str) -> str:
    doc = inspect.getdoc(sys.modules[module]) or ""
    title = doc.partition("\n")[0].rstrip(".").removeprefix("Lines about ")
    return title[0].upper() + title[1:]


def _flat(text: str, *, keep_paragraphs: bool = False) -> str:
    paragraphs = text.split("\n\n") if keep_paragraphs else [text]
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def type_text(hint: Any, *, plural: bool = False) -> str:
    """An annotation in JSON's words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(type_text(each) for each in arguments)
    if origin is Literal:
        return " or ".join(f'`"{each}"`' for each in arguments)
    if origin is tuple:
        return f"list of {type_text(arguments[0], plural=True)}"
    if origin is not None:
        return f"object: {type_text(arguments[1])} by name"
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    return NAMES[hint] + ("s" if plural and hint is not str else "")


def _inside(kind: type) -> Iterator[type]:
    """Dataclasses in the fields of a class, at every depth."""
    for hint in get_type_hints(kind).values():
        for each in (hint, *_arguments(hint)):
            if dataclasses.is_dataclass(each) and isinstance(each, type):
                yield each
                yield from _inside(each)


def _arguments(hint: Any) -> Iterator[Any]:
    for each in get_args(hint):
        yield each
        yield from _arguments(each)


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")
