"""'did you mean' for words that people mistype."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(given: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word most like `given`, in any case; None if none is similar."""
    import difflib  # only needed after an error

    by_lower = {word.lower(): word for word in reversed(list(known))}
    near = difflib.get_close_matches(given.lower(), list(by_lower), n=1, cutoff=cutoff)
    return by_lower[near[0]] if near else None


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """` (did you mean 'alpha'?)`, or nothing if no known word is similar."""
    word = nearest(str(given), known)
    return f" (did you mean '{word}'?)" if word is not None else ""
