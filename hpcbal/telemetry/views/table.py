"""Plain tables that look right in a terminal, in a batch log and in a mail."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def format_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[int] = (),
    totals: Sequence[str] | None = None,
) -> list[str]:
    """Lines of an aligned table, ASCII only, without trailing blanks.

    Args:
        headers: one per column.
        rows: cells, as many per row as there are headers.
        right: columns aligned to the right (numbers).
        totals: a last row below a rule of its own.
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


def count_text(count: int, noun: str) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def number_text(value: float | None, digits: int = 4) -> str:
    """A metric, or `-` if there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def telling_line(text: str) -> str:
    """Of a traceback the line that tells most: the exception's type and the first line of its message."""
    lines = [line for line in text.splitlines() if line.strip()]
    after_frames = max((i + 1 for i, line in enumerate(lines) if line.startswith("  ")), default=0)
    told = lines[min(after_frames, len(lines) - 1)].strip() if lines else ""
    return "".join(char if char.isprintable() else "?" for char in told)
