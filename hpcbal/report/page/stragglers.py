"""The part of the page that names whom groups waited for, and whom they went on without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from hpcbal.report.drawing.colors import colors_of
from hpcbal.report.drawing.scales import duration_label, percent_label
from hpcbal.report.model import GroupWait, ReportData
from hpcbal.telemetry.views.kinds import view_of
from hpcbal.telemetry.views.table import count_text

MAX_OPEN = 8
"""More groups are folded; those that lost most come first."""

WHY_NAMES: Mapping[str, str] = {
    "input": "waited for data",
    "compute": "computed longer",
    "collective": "summing gradients",
}


def stragglers(data: ReportData) -> str:
    """Who was late in which group and why; empty if nobody was and nothing was left out."""
    if not (data.waits or data.left_out):
        return ""
    caption = (
        "Of each group and round the GPU that came last to the sum of the gradients: how much later than the "
        "mean of the others, in all its epochs, and what part of the training steps that was."
    )
    return (
        f'<section id="stragglers"><h2>Who held up whom</h2><p class="caption">{caption}</p>'
        f"{_left_out(data)}{_tables(data)}</section>"
    )


def _left_out(data: ReportData) -> str:
    rows = "".join(
        f'<li data-job="{escape(each.job)}">After {duration_label(each.at_s)} <b>{escape(each.job)}</b> '
        f"went on without {escape(data.slot_names[each.gpu])}, as it was faster so.</li>"
        for each in data.left_out
    )
    return f"<ul>{rows}</ul>" if rows else ""


def _tables(data: ReportData) -> str:
    if not data.waits:
        return '<p class="quiet">No group waited long for one of its GPUs.</p>'
    colors = colors_of(job.name for job in data.jobs)
    text = _table(data, data.waits[:MAX_OPEN], colors)
    if more := data.waits[MAX_OPEN:]:
        text += f"<details><summary>and {len(more)} more</summary>{_table(data, more, colors)}</details>"
    return text


def _table(data: ReportData, waits: Sequence[GroupWait], colors: Mapping[str, str]) -> str:
    rows = "".join(_row(data, wait, colors.get(wait.job, "#a6a6a6")) for wait in waits)
    return (
        f'<div class="scroll"><table><thead><tr><th>{view_of(data.run_kind).job}</th>'
        '<th class="number minor">round</th>'
        '<th>last</th><th>why</th><th class="number minor">late</th><th class="number">of its steps</th>'
        f'<th class="number minor">epochs</th></tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _row(data: ReportData, wait: GroupWait, color: str) -> str:
    last = "the sums" if wait.gpu is None else data.slot_names[wait.gpu]
    of_group = f"1 of {count_text(wait.num_gpus, 'GPU')}"
    why = WHY_NAMES.get(wait.why, escape(wait.why))
    number = "\N{EN DASH}" if wait.round_index is None else str(wait.round_index)
    return (
        f'<tr data-job="{escape(wait.job)}"><td><span class="swatch" style="background:{color}"></span>'
        f'{escape(wait.job)}</td><td class="number minor">{number}</td>'
        f'<td class="slot" title="{of_group}">{escape(last)}</td><td class="why">{why}</td>'
        f'<td class="number minor">{_late_label(wait.late_s)}</td>'
        f'<td class="number">{percent_label(wait.share)}</td>'
        f'<td class="number minor">{wait.num_late} of {wait.num_epochs}</td></tr>'
    )


def _late_label(seconds: float) -> str:
    return duration_label(seconds) if seconds >= 0.1 else f"{1000.0 * seconds:.0f} ms"
