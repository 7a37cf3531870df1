"""Text from elsewhere (names, messages of user code, keys of a file) in a form that is safe to show."""

from __future__ import annotations


def printable(text: str) -> str:
    """Write every character that a terminal could obey as an escape such as `\\x1b`; lines and tabs stay.

    Control characters, marks that reverse the direction of writing, invisible characters and halves of
    surrogate pairs change what a terminal shows, or cannot be encoded.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else _escaped(char) for char in text)


def one_line(text: str) -> str:
    """The same, with ends of lines and tabs as escapes, too."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def shortened(text: str, most: int = 160) -> str:
    """`text`, without its middle if it has more than `most` characters."""
    if len(text) <= most:
        return text
    tail = most // 4
    return f"{text[: most - 3 - tail]}...{text[-tail:]}"


def _escaped(char: str) -> str:
    if "\udc80" <= char <= "\udcff":  # a byte of a name that is no UTF-8
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode("ascii")
