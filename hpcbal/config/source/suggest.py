"""'did you mean' for words that people mistype."""

from __future__ import annotations

from collections.abc import Iterable

_OTHER_WORDS = {
    "lr": "learning_rate",
    "epochs": "max_epochs",
    "num_epochs": "max_epochs",
    "n_epochs": "max_epochs",
    "gpus": "per_node",
    "num_gpus": "per_node",
    "rescale": "normalize",
    "scale": "normalize",
    "callback": "callbacks",
}
"""What other tools call keys and operations."""


def nearest(given: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word that other tools call `given`, or most like it, in any case; None if none is similar."""
    import difflib  # only needed after an error

    known = list(known)
    if _OTHER_WORDS.get(given.lower()) in known:
        return _OTHER_WORDS[given.lower()]
    by_lower = {word.lower(): word for word in reversed(list(known))}
    near = difflib.get_close_matches(given.lower(), list(by_lower), n=1, cutoff=cutoff)
    return by_lower[near[0]] if near else None


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """` (did you mean 'alpha'?)`, or nothing if no known word is similar."""
    word = nearest(str(given), known)
    return f" (did you mean '{word}'?)" if word is not None else ""
