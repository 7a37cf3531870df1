"""The scores of members that were each trained without one fold, as one score with its spread."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from hpcbal.kinds import MEMBER_NAME
from hpcbal.telemetry.views.table import number_text


def fold_sentences(scores: Mapping[str, float | None], score: str) -> list[str]:
    """Return a sentence for each configuration with members of two folds or more that have a score.

    Args:
        scores: of all DNNs, by name; None: not known.
        score: what it is, for the sentence.
    """
    found: dict[str, list[float]] = {}
    for name, value in scores.items():
        member = MEMBER_NAME.fullmatch(name)
        if member is not None and value is not None:
            found.setdefault(member[1], []).append(value)
    return [
        f"{name} over {len(values)} folds: {score} {number_text(statistics.fmean(values))} +- "
        f"{number_text(statistics.stdev(values))} (standard deviation), "
        f"{number_text(min(values))} to {number_text(max(values))}"
        for name, values in found.items()
        if len(values) > 1
    ]
