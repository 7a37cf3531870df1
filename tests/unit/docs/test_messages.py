"""The index of messages in docs/troubleshooting.md is true: hpcbal still says each of them."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "troubleshooting.md"
LEAST = 8
"""Characters of a piece that are enough to recognise a message by."""


def literals(node: ast.expr) -> list[str]:
    """The texts between the variable parts of a string expression."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else None for part in node.values]
        text = "".join(part if isinstance(part, str) else "\0" for part in parts)
        return text.split("\0")
    return []


@cache
def said_by_hpcbal() -> list[str]:
    """All texts of the package, and of the scripts."""
    found = []
    for path in sorted((ROOT / "hpcbal").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant | ast.JoinedStr):
                found += literals(node)
    scripts = [
        *ROOT.glob("scripts/*.sh"),
        *ROOT.glob("slurm/*"),
        *ROOT.glob("lsf/*"),
        *ROOT.rglob("templates/*.sh"),
    ]
    return [*found, *(path.read_text(encoding="utf-8") for path in scripts)]


def listed(page: str) -> list[str]:
    """The messages of the index: what stands in the first column of its tables."""
    index = page.partition("\n## Messages\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \| ", index, flags=re.MULTILINE)
    return [message for cell in cells for message in re.findall(r"`(.+?)`(?:,|$| \(| or)", cell)]


MESSAGES = listed(PAGE.read_text(encoding="utf-8"))


def pieces(message: str) -> list[str]:
    """The fixed parts of a message, in which `...` stands for what varies."""
    return [piece for part in message.split("...") if len(piece := part.strip(" :;,()'")) >= LEAST]


@pytest.mark.parametrize("message", MESSAGES)
def test_hpcbal_says_each_message_of_the_index(message: str) -> None:
    assert pieces(message), f"{message}: too short to be recognised"
    unsaid = [piece for piece in pieces(message) if not any(piece in text for text in said_by_hpcbal())]
    assert unsaid == []


def test_the_index_has_each_message_once() -> None:
    assert len(MESSAGES) > 90
    assert sorted(MESSAGES) == sorted(set(MESSAGES))


def test_a_message_that_nobody_says_is_found() -> None:
    page = "# A\n\n## Messages\n\n| message | do |\n|---|---|\n"
    page += "| `gone ... wrong`, `never said` (x) | y |\n\n## Z\n| `z` | |\n"
    assert listed(page) == ["gone ... wrong", "never said"]
    assert pieces("a ... the fixed part: ... and more ... b") == ["the fixed part", "and more"]
    assert not any("this sentence is nowhere in hpcbal" in text for text in said_by_hpcbal())
