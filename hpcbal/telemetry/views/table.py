"""Plain-text tables for a terminal, a batch log or an email."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hpcbal.safe_text import one_line

_MAX_CELL = 160


def format_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[int] = (),
    totals: Sequence[str] | None = None,
) -> list[str]:
    """Lines of an aligned table, ASCII only, without trailing blanks.

    Args:
        headers: one header per column.
        rows: the cells of each row, as many as there are headers.
        right: indices of right-aligned columns (numbers).
        totals: a last row, separated by a rule.
    """
    everything = [headers, *rows, *([totals] if totals else [])]
    widths = [max(len(row[column]) for row in everything) for column in range(len(headers))]
    rule = "  ".join("-" * width for width in widths)

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(padded).rstrip()

    lines = [line(headers), rule, *(line(row) for row in rows)]
    return [*lines, rule, line(totals)] if totals else lines


def early_text(num_pruned: int, num_stopped: int) -> str:
    """`, 2 pruned, 1 stopped`: how many ended before their time; empty if none did."""
    pruned = f", {num_pruned} pruned" if num_pruned else ""
    return pruned + (f", {num_stopped} stopped" if num_stopped else "")


def count_text(count: int, noun: str) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def number_text(value: float | None, digits: int = 4) -> str:
    """A metric, or `-` if there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def cell_text(text: str) -> str:
    """Text cut to the width of a table's last column."""
    return text if len(text) <= _MAX_CELL else f"{text[: _MAX_CELL - 3]}..."


def key_line(text: str) -> str:
    """Return the first line of a failure's detail that is not empty: it is the whole message."""
    return one_line(next((line.strip() for line in text.splitlines() if line.strip()), ""))
