"""The parts of the page that are words and tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from hpcbal.report.drawing.colors import colors_of
from hpcbal.report.drawing.scales import change_label, duration_label, number_label, percent_label
from hpcbal.report.model import JobReport, ReportData
from hpcbal.telemetry.views.kinds import view_of
from hpcbal.telemetry.views.table import count_text, telling_line

MAX_OPEN_FAILURES = 5
"""More failed jobs are folded."""

MAX_OPEN_ROWS = 40
"""A longer table of jobs is folded and can be searched."""

_NOTHING = "\N{EN DASH}"


def headline(data: ReportData) -> str:
    """Name, state, when and on what."""
    mood = (
        "bad" if data.failed or data.state == "interrupted" else "good" if data.state == "done" else "plain"
    )
    state = f'<span class="state {mood}">{escape(data.state)}</span>'
    what = "simulation" if data.kind == "simulation" else "run"
    when = f", started {_when(data.started_at)}" if data.started_at else ""
    jobs = count_text(len(data.jobs), view_of(data.run_kind).job)
    size = f"{jobs} on {count_text(data.num_slots, 'GPU slot')}"
    note = f'<p class="quiet">{escape(data.note)}</p>' if data.note else ""
    return (
        f"<header><h1>{escape(data.name)}</h1>"
        f'<p class="quiet">{state} &nbsp;{what} of {size}{when}</p>{note}</header>'
    )


def cards(data: ReportData) -> str:
    """The few numbers that most people want."""
    shown = [_card_of_jobs(data), _card_of_time(data)]
    if data.prediction is not None and data.prediction.predicted_s > 0.0:
        shown.append(_card_of_prediction(data))
    if data.use and data.duration_s > 0.0:
        idle = percent_label(data.use_share("idle"))
        shown.append((percent_label(data.use_share("training")), f"of all slot time training; {idle} idle"))
    best = next(iter(_ranked(data)), None)
    if best is not None and best.best is not None:
        shown.append((number_label(best.best), f"{view_of(data.run_kind).best_words}, {best.name}"))
    boxes = "".join(f'<div class="card"><b>{escape(a)}</b><span>{escape(b)}</span></div>' for a, b in shown)
    return f'<section class="cards">{boxes}</section>'


def failures(data: ReportData) -> str:
    """What failed and why; empty if nothing has."""
    if not data.failed:
        return ""
    word = view_of(data.run_kind).job
    shown, more = data.failed[:MAX_OPEN_FAILURES], data.failed[MAX_OPEN_FAILURES:]
    folded = ""
    if more:
        folded = f"<details><summary>and {len(more)} more</summary>{_failure_table(more, word)}</details>"
    return f'<section id="failed"><h2>What failed</h2>{_failure_table(shown, word)}{folded}</section>'


def overhead_table(data: ReportData) -> str:
    """Costs that are not training, as shares of all slot time."""
    if not data.overheads:
        return ""
    most = max(overhead.share for overhead in data.overheads) or 1.0
    rows = "".join(
        f'<tr><td>{escape(each.name)}</td><td class="number">{percent_label(each.share)}</td>'
        f'<td><span class="bar" style="width:{72.0 * each.share / most:.0f}px"></span></td>'
        f'<td class="quiet minor">{escape(each.note)}</td></tr>'
        for each in data.overheads
    )
    return (
        '<section id="overheads"><h2>Overheads</h2><p class="caption">Shares of all slot time.</p>'
        f'<div class="scroll"><table><tbody>{rows}</tbody></table></div></section>'
    )


def job_table(data: ReportData) -> str:
    """One row per job, best first."""
    if not data.jobs:
        return ""
    colors = colors_of(job.name for job in data.jobs)
    view = view_of(data.run_kind)
    rows = "".join(_job_row(job, colors[job.name]) for job in _ranked(data))
    table = (
        f'<div class="scroll"><table id="jobs"><thead><tr><th>{view.job}</th><th>state</th>'
        f'<th class="number">epochs</th><th class="number">{view.best_title}</th>'
        '<th class="number minor">time in groups</th><th class="number">GPU time</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )
    if len(data.jobs) > MAX_OPEN_ROWS:
        search = '<p><input id="search" type="search" placeholder="search" aria-label="search"></p>'
        table = f"<details><summary>all {len(data.jobs)} {view.job}s</summary>{search}{table}</details>"
    return f'<section id="all"><h2>All {view.job}s</h2>{table}</section>'


def _ranked(data: ReportData) -> list[JobReport]:
    """The jobs, those with the best value first, those without one last."""
    sign = -1.0 if view_of(data.run_kind).more_is_better else 1.0
    return sorted(data.jobs, key=lambda job: math.inf if job.best is None else sign * job.best)


def _card_of_jobs(data: ReportData) -> tuple[str, str]:
    num_done = sum(job.state == "done" for job in data.jobs)
    failed = f", {len(data.failed)} failed" if data.failed else ""
    return f"{num_done} of {len(data.jobs)}", f"{view_of(data.run_kind).job}s done{failed}"


def _card_of_time(data: ReportData) -> tuple[str, str]:
    slot_time = duration_label(data.duration_s * data.num_slots)
    starts = f" in {len(data.start_s)} starts" if len(data.start_s) > 1 else ""
    return duration_label(data.duration_s), f"of running{starts}, {slot_time} of slot time"


def _card_of_prediction(data: ReportData) -> tuple[str, str]:
    assert data.prediction is not None
    predicted_s, actual_s = data.prediction.predicted_s, data.prediction.actual_s
    unless = f"if no {view_of(data.run_kind).job} stops early"
    if actual_s is None:
        return duration_label(predicted_s), f"predicted, {unless}"
    told = f"took {duration_label(actual_s)}, predicted {duration_label(predicted_s)} {unless}"
    return change_label(actual_s / predicted_s - 1.0), told


def _failure_table(jobs: Sequence[JobReport], word: str) -> str:
    rows = "".join(_failure_row(job) for job in jobs)
    return (
        f'<div class="scroll"><table><thead><tr><th>{word}</th><th>cause</th>'
        '<th class="number minor">epochs</th>'
        f"<th>what it said</th></tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _failure_row(job: JobReport) -> str:
    told = telling_line(job.detail)
    text = escape(told)
    if job.detail.strip() != told:
        text += f"<details><summary>traceback</summary><pre>{escape(job.detail.strip())}</pre></details>"
    return (
        f'<tr data-job="{escape(job.name)}"><td>{escape(job.name)}</td><td>{escape(job.cause)}</td>'
        f'<td class="number minor">{job.epochs}</td><td>{text}</td></tr>'
    )


def _job_row(job: JobReport, color: str) -> str:
    best = _NOTHING if job.best is None else f"{job.best:.4f}"
    return (
        f'<tr data-job="{escape(job.name)}"><td><span class="swatch" style="background:{color}"></span>'
        f'{escape(job.name)}</td><td>{escape(job.state)}</td><td class="number">{job.epochs}</td>'
        f'<td class="number">{best}</td><td class="number minor">{duration_label(job.wall_time_s)}</td>'
        f'<td class="number">{duration_label(job.slot_seconds)}</td></tr>'
    )


def _when(utc: str) -> str:
    """2025-01-31T12:00:00.000Z as people write it, to the minute."""
    return escape(f"{utc[:10]} {utc[11:16]} UTC")
