"""A choice of a schedule, for people."""

from __future__ import annotations

from hpcbal.events.ensemble import Prediction, ScheduleChosen
from hpcbal.telemetry.files.json_lines import duration_text
from hpcbal.telemetry.views.table import count_text


def choice_cells(choice: ScheduleChosen) -> list[str]:
    """What was chosen, and how much longer the best schedule of each other paradigm would take.

    Returns: pieces of one sentence, to be joined by commas.
    """
    chosen, *others = choice.best_by_paradigm()
    is_kept = choice.previous == choice.schedule
    left = f"{duration_text(chosen.remaining_s)} in {count_text(chosen.num_rounds, 'round')}"
    first = f"schedule {'still' if is_kept else 'auto:'} {choice.schedule}: {left} predicted"
    return [first, *(_longer(other, chosen) for other in others)]


def _longer(other: Prediction, chosen: Prediction) -> str:
    """`independent +91%`, or `local at least +10%` if the prediction was given up."""
    share = other.remaining_s / chosen.remaining_s - 1.0 if chosen.remaining_s > 0.0 else 0.0
    return f"{other.schedule.paradigm} {'at least ' if other.is_cut else ''}{100.0 * share:+.0f}%"
