"""Charts that compare schedules over numbers of GPUs, like [FLEET] Fig. 5 and 6."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpcbal.report.drawing.axes import AXIS_HEIGHT, LABEL_SIZE, draw_left
from hpcbal.report.drawing.colors import PALETTE
from hpcbal.report.drawing.scales import Scale, number_ticks
from hpcbal.report.drawing.shapes import INK, QUIET, Drawing, Sheet, text_width
from hpcbal.simulator import Row

_TOP, _HEIGHT, _LEFT, _KEY_HEIGHT = 36.0, 220.0, 64.0, 26.0
_TITLE_SIZE = 13.0
_GROUP_WIDTH = 96.0
_LEAST_WIDTH = 520.0

CHARTS: dict[str, tuple[str, Callable[[Row], float]]] = {
    "speedup": ("Speed-up over independent", lambda row: row.speedup_vs_independent),
    "makespan": ("Makespan over its lower bound", lambda row: row.over_lower_bound),
    "waiting": ("Seconds without a DNN, per slot", lambda row: row.wait_s_per_gpu),
}
"""File name -> (title, value)."""


def draw_comparison(name: str, rows: Sequence[Row], scenario_name: str) -> Drawing:
    """Draw one of CHARTS: a group of bars per number of GPUs, one bar per schedule.

    Args:
        rows: at least one.
    """
    title, value = CHARTS[name]
    gpus = list(dict.fromkeys(row.gpus for row in rows))
    paradigms = list(dict.fromkeys(row.paradigm for row in rows))
    width = max(_LEAST_WIDTH, _LEFT + _GROUP_WIDTH * len(gpus) + 8.0)
    sheet = Sheet()
    sheet.text(_LEFT, 18.0, title, _TITLE_SIZE, bold=True)
    top = _TOP + _KEY_HEIGHT
    bottom = top + _HEIGHT
    y = Scale(0.0, max(1e-9, *(value(row) for row in rows)), bottom, top)
    draw_left(sheet, y, number_ticks(0.0, y.high, 5), _LEFT, width - 8.0)
    _draw_key(sheet, paradigms)
    step = (width - 8.0 - _LEFT) / len(gpus)
    bar = 0.8 * step / len(paradigms)
    for row in rows:
        group, place = gpus.index(row.gpus), paradigms.index(row.paradigm)
        x = _LEFT + step * (group + 0.1) + bar * place
        height = bottom - y(value(row))
        label = f"{row.paradigm} on {row.gpus} slots: {value(row):.4g}"
        sheet.rect(x, bottom - height, max(1.0, bar - 2.0), height, PALETTE[place], title=label)
    for group, number in enumerate(gpus):
        sheet.text(_LEFT + step * (group + 0.5), bottom + 16.0, str(number), LABEL_SIZE, QUIET, "middle")
    sheet.text(_LEFT - 6.0, bottom + 16.0, "slots", LABEL_SIZE, QUIET, "end")
    return sheet.done(name, f"{title}, {scenario_name}", width, bottom + AXIS_HEIGHT)


def _draw_key(sheet: Sheet, paradigms: Sequence[str]) -> None:
    x = _LEFT
    for place, paradigm in enumerate(paradigms):
        sheet.rect(x, _TOP, 11.0, 11.0, PALETTE[place])
        sheet.text(x + 16.0, _TOP + 10.0, paradigm, LABEL_SIZE, INK)
        x += 32.0 + text_width(paradigm, LABEL_SIZE)
