"""Words that people read: a docstring says what a thing is or does."""

from __future__ import annotations

from pathlib import Path


def test_no_docstring_begins_with_what() -> None:
    """It is half a sentence: "Return the ..." says what a function does, and a noun what a class is."""
    repository = Path(__file__).parents[2]
    found = [
        f"{path.relative_to(repository)}:{number}: {line}"
        for folder in ("hpcbal", "tests", "bench", "scripts")
        for path in sorted((repository / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if line.lstrip().startswith('"""What ')
    ]
    assert found == []
