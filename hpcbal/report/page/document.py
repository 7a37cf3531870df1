"""The report as one HTML page that holds all it needs: open it on a laptop, mail it, put it on a wall."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from hpcbal.report.charts.all_charts import NARROW, WIDE, draw_charts
from hpcbal.report.charts.curves import METRICS, metric_of
from hpcbal.report.drawing.shapes import Drawing
from hpcbal.report.drawing.svg import to_svg
from hpcbal.report.model import ReportData
from hpcbal.report.page.parts import cards, failures, headline, job_table, overhead_table
from hpcbal.report.page.stragglers import stragglers
from hpcbal.report.page.style import CSS, SCRIPT

# The browser itself then refuses whatever is not in the page.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"

_CAPTIONS: Mapping[str, tuple[str, str]] = {
    "slots": (
        "Who trained where",
        "One row per GPU slot, one block per DNN while it holds the slot; pale blocks are profiling, the "
        "grey ground is idle. Click a DNN to follow it through the page.",
    ),
    "learning": ("Learning curves", ""),
    "use": (
        "What the slots did",
        "Every second of a slot is one of these. In a shared stream the faster DNNs of a round wait for the "
        "slowest: inside a pass for data, at its end for the others.",
    ),
    "rates": (
        "Rates planned and measured",
        "Samples per second of the training steps, waiting left out, beside what the schedule reckoned with.",
    ),
    "shares": (
        "How steps were shared out",
        "What each GPU of a group gets of a step, after each epoch: balancing gives less to the slow ones. A "
        "line that ends is a GPU that the group does not have any more.",
    ),
    "preprocessing": (
        "Load of the preprocessors",
        "What the passes of each round asked of what its preprocessors can make. Near 100 % they hold up the "
        "training.",
    ),
}


def render_page(data: ReportData) -> str:
    """The whole page as text."""
    wide, narrow = draw_charts(data, WIDE), draw_charts(data, NARROW)
    body = [headline(data), cards(data), failures(data)]
    for name in _CAPTIONS:
        if name == "shares":
            body.append(stragglers(data))
        body.append(_figure(name, data, wide, narrow))
    body += [overhead_table(data), job_table(data), _environment(data)]
    title = f"{escape(data.name)} \N{EM DASH} hpcbal report"
    head = (
        '<meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{title}</title><style>\n{CSS}\n</style>'
    )
    parts = "\n".join(part for part in body if part)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n<body>\n<main>\n{parts}\n</main>\n'
        f"<script>\n{SCRIPT}\n</script>\n</body>\n</html>\n"
    )


def _figure(name: str, data: ReportData, wide: Mapping[str, Drawing], narrow: Mapping[str, Drawing]) -> str:
    if name not in wide:
        return ""
    title, caption = _CAPTIONS[name]
    if name == "slots" and data.rounds:
        caption += " The band above shows the rounds."
    elif name == "learning":
        metric = METRICS[metric_of(data) or "val_accuracy"]
        caption = f"{metric.capitalize()} after each epoch; with each name the value after the last one."
    return (
        f'<section id="{name}"><h2>{title}</h2><p class="caption">{caption}</p>'
        f'<figure class="wide">{to_svg(wide[name])}</figure>'
        f'<figure class="narrow">{to_svg(narrow[name])}</figure></section>'
    )


def _environment(data: ReportData) -> str:
    if not data.facts:
        return ""
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in data.facts)
    return f'<section id="environment"><h2>Environment</h2><dl>{rows}</dl></section>'
