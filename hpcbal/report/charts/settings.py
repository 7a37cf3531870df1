"""Hyper-parameters against the result: one panel per setting, one dot per DNN."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hpcbal.report.drawing.axes import AXIS_HEIGHT, LABEL_SIZE, Scale, draw_left, number_label, number_ticks
from hpcbal.report.drawing.names import distinct_names
from hpcbal.report.drawing.shapes import HAIR, INK, QUIET, Drawing, Sheet, fitted, shortened, text_width
from hpcbal.report.model import JobReport, ReportData

MAX_PANELS = 9
"""Settings beyond these are left out; the table has them."""

_HEIGHT = 150.0
_GAP = 22.0
_LOG_RATIO = 20.0  # numbers that differ by more than this factor have a logarithmic axis
_MAX_CATEGORIES = 12


def draw_settings(data: ReportData, colors: Mapping[str, str], width: float) -> Drawing | None:
    """Draw the panels, `width` pixels wide; None if no setting or no result differs between jobs."""
    jobs = [job for job in data.jobs if job.best is not None]
    keys = [key for key in data.setting_keys if len({job.settings.get(key) for job in jobs}) > 1][:MAX_PANELS]
    values = [job.best for job in jobs if job.best is not None]
    if not keys or min(values) == max(values):
        return None
    margin = 0.06 * (max(values) - min(values))
    columns = min(len(keys), 3) if width > 600.0 else 1
    column_width = (width - _GAP * (columns - 1)) / columns
    sheet = Sheet()
    sheet.text(0.0, 12.0, data.measured_by.words, LABEL_SIZE, QUIET)
    row_height = _HEIGHT + AXIS_HEIGHT + 32.0
    for index, key in enumerate(keys):
        top = 24.0 + row_height * (index // columns)
        start = (column_width + _GAP) * (index % columns)
        y = Scale(min(values) - margin, max(values) + margin, top + 18.0 + _HEIGHT, top + 18.0)
        sheet.text(start, top + 8.0, shortened(key, column_width, LABEL_SIZE), LABEL_SIZE, INK, bold=True)
        left = start + 44.0
        draw_left(sheet, y, number_ticks(y.low, y.high, 4), left, start + column_width)
        _draw_panel(sheet, key, jobs, colors, (left + 10.0, start + column_width - 10.0), y)
    num_rows = math.ceil(len(keys) / columns)
    return sheet.done(
        "settings", f"Settings and results, {data.name}", width, 24.0 + row_height * num_rows - 12.0
    )


def _draw_panel(
    sheet: Sheet,
    key: str,
    jobs: Sequence[JobReport],
    colors: Mapping[str, str],
    ends: tuple[float, float],
    y: Scale,
) -> None:
    texts = [job.settings.get(key, "") for job in jobs]
    place_by_text, ticks = _places(texts, ends)
    for place, label in ticks:
        sheet.line([(place, y.start), (place, y.end)], HAIR)
        middle = fitted(place, label, LABEL_SIZE, 0.0, ends[1] + 10.0)
        sheet.text(middle, y.start + 16.0, label, LABEL_SIZE, QUIET, "middle")
    for job, text in zip(jobs, texts, strict=True):
        if job.best is not None and text in place_by_text:
            title = f"{job.name}: {number_label(job.best)}, {key} {text or 'not given'}"
            color = colors.get(job.name, INK)
            sheet.circle(place_by_text[text], y(job.best), 4.0, color, "#ffffff", job=job.name, title=title)


def _places(
    texts: Sequence[str], ends: tuple[float, float]
) -> tuple[Mapping[str, float], Sequence[tuple[float, str]]]:
    """The place of each value on the axis, and (place, label) of its ticks, which do not touch."""
    numbers = {text: number for text in texts if (number := _number(text)) is not None}
    if len(numbers) < len({*texts}):  # words, or a DNN without this setting
        return _places_of_words(list(dict.fromkeys(texts)), ends)
    low, high = min(numbers.values()), max(numbers.values())
    scale = Scale(low, high, *ends)
    if low > 0.0 and high / low > _LOG_RATIO:
        logarithmic = replace(scale, low=math.log10(low), high=math.log10(high))
        places = {text: logarithmic(math.log10(number)) for text, number in numbers.items()}
    else:
        places = {text: scale(number) for text, number in numbers.items()}
    ticks: list[tuple[float, str]] = []
    free_from = -math.inf
    for text in sorted(places, key=places.__getitem__):  # the values that were tried
        half = text_width(text, LABEL_SIZE) / 2.0
        if min(places[text], ends[1] + 10.0 - half) - half >= free_from:
            ticks.append((places[text], text))
            free_from = places[text] + half + 8.0
    return places, ticks


def _places_of_words(
    words: Sequence[str], ends: tuple[float, float]
) -> tuple[Mapping[str, float], Sequence[tuple[float, str]]]:
    words = words[:_MAX_CATEGORIES]
    step = (ends[1] - ends[0]) / len(words)
    places = {word: ends[0] + step * (index + 0.5) for index, word in enumerate(words)}
    labels = distinct_names((word or "not given" for word in words), step - 6.0, LABEL_SIZE, least=3)
    return places, [(places[word], labels[word or "not given"]) for word in words]


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
