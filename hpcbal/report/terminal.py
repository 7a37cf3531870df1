"""A run on a terminal: what its slots have done, its curves, who is next, and when it is expected to end."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

from hpcbal.planning.calibration import TimeBand
from hpcbal.report.charts.curves import metric_of
from hpcbal.report.drawing.axes import duration_label
from hpcbal.report.drawing.names import ROLE_COLORS, colors_of, ink_on
from hpcbal.report.model import JobReport, ReportData
from hpcbal.safe_text import one_line
from hpcbal.telemetry.files.json_lines import unix_seconds
from hpcbal.telemetry.views.kinds import AnyStatus, jobs_of
from hpcbal.telemetry.views.status import has_ended
from hpcbal.telemetry.views.summary import metric_words
from hpcbal.telemetry.views.table import count_text

MARKS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
"""One for each job, in the order of the config; with more jobs they repeat."""

_BARS, _ASCII_BARS = "▁▂▃▄▅▆▇█", "_.:-=+*#"
_STATE_STYLES = {"done": "green", "running": "cyan", "interrupted": "bold red"}
_WAITING = ("suspended", "waiting", "pending")
_OVER = ("done", "pruned", "stopped", "failed")
_QUIET = Style(dim=True)
_LEAST_SPARK = 8


def remaining_s(data: ReportData, status: AnyStatus | None, now_s: float) -> float | None:
    """Return the seconds that a run is predicted to take from now on, if no job stops early.

    Ensembles predict that themselves. Jobs on parameter servers are taken to go on as they did so far, and
    nothing is known while some wait for machines.

    Args:
        data: the values of the run.
        status: the content of its status.json.
        now_s: Unix seconds.

    Returns: at least 0; None if nothing is known.
    """
    if status is None or has_ended(status) or data.state != "running":
        return None
    age_s = max(0.0, now_s - unix_seconds(status["updated_at"]))
    if "prediction" in status:
        return max(0.0, status["prediction"]["remaining_s"] - age_s)
    live = [job for job in jobs_of(status) if job["state"] not in _OVER]
    if status["kind"] == "ensemble" or not live or any(not job["epochs"] for job in live):
        return None
    left_s = (job["wall_time_s"] / job["epochs"] * (job["max_epochs"] - job["epochs"]) for job in live)
    return max(0.0, max(left_s) - age_s)


@dataclass(frozen=True, slots=True)
class RunView:
    """The picture of a run, which fills the width and the height of the terminal.

    Attributes:
        data: the values of the run.
        status: the content of its status.json; None if there is none.
        band: how long it takes from now on; None if that is not known.
        now_s: Unix seconds.
    """

    data: ReportData
    status: AnyStatus | None
    band: TimeBand | None
    now_s: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield one line after the other, each as wide as the terminal at most."""
        lines = self.lines(
            options.max_width,
            options.height or options.max_height,
            has_colors=console.color_system is not None,
            is_ascii=options.ascii_only,
        )
        for line in lines:
            line.truncate(options.max_width, overflow="crop" if options.ascii_only else "ellipsis")
            line.no_wrap = True
            yield line

    def lines(self, width: int, height: int, *, has_colors: bool, is_ascii: bool) -> list[Text]:
        """Return at most `height` lines; where there is little room, the last parts of the view are cut."""
        head = [self._headline(), self._timeline()]
        if self.data.note and self.data.state != "running":
            head.append(Text(one_line(self.data.note), "yellow"))
        foot = [Text(), self._next(), self._foot()]
        if not self.data.jobs:
            return [*head, *foot][:height]
        room = max(2, height - len(head) - len(foot) - 5)  # two blank lines, two titles, the axis
        num_jobs = len(self.data.jobs)
        for_slots = max(1, min(self.data.num_slots, max(room // 2, room - num_jobs)))
        table = self._job_lines(width, max(1, room - for_slots), is_ascii)
        slots = self._slot_lines(width, for_slots, has_colors=has_colors)
        return [*head, Text(), *slots, Text(), *table, *foot][:height]

    # ---- parts ---------------------------------------------------------------------------------

    def _headline(self) -> Text:
        data = self.data
        line = Text(one_line(data.name), "bold")
        line.append("  ").append(data.state, _STATE_STYLES.get(data.state, "bold yellow"))
        done = sum(job.state == "done" for job in data.jobs)
        parts = [f"{done} of {count_text(len(data.jobs), data.kind_of_run.job)} done"]
        parts += [
            f"{number} {state}"
            for state in _OVER[1:]
            if (number := sum(job.state == state for job in data.jobs))
        ]
        if self.status is not None and not has_ended(self.status):
            slots = count_text(self.status["num_slots"], data.kind_of_run.slot)
            parts.append(f"{self.status['busy_slots']} of {slots} in use")
        return line.append("  " + ", ".join(parts))

    def _timeline(self) -> Text:
        data = self.data
        starts = f" in {count_text(len(data.start_s), 'start')}" if len(data.start_s) > 1 else ""
        if data.state != "running":
            line = Text(f"{duration_label(data.duration_s)}{starts}")
            if data.prediction is not None and data.prediction.actual_s is not None:
                line.append(f", predicted {duration_label(data.prediction.predicted_s)}")
            return line
        line = Text(f"{duration_label(data.duration_s)}; ")
        band = self.band
        if band is None:
            return line.append("its end is not predicted yet", _QUIET)
        if band.median_s <= 0.0:
            return line.append("about to end, if no job stops early")
        low, median, high = (self._clock(self.now_s + s) for s in (band.low_s, band.median_s, band.high_s))
        line.append(f"ends at {median}", "bold").append(f" ({low} to {high}, {band.title})")
        return line

    def _clock(self, unix_s: float) -> str:
        """Return a time of day, with the date if it is not today's."""
        moment, today = time.localtime(unix_s), time.localtime(self.now_s)
        is_today = moment[:3] == today[:3]
        short = unix_s - self.now_s < 600.0 and is_today
        return time.strftime("%H:%M:%S" if short else "%H:%M" if is_today else "%a %d %b %H:%M", moment)

    def _next(self) -> Text:
        """Who begins next: of an ensemble as predicted, of many jobs in the order of their arrival."""
        line, data = Text("next: "), self.data
        prediction = None if self.status is None else self.status.get("prediction")
        waiting = [job.name for job in data.jobs if job.state in _WAITING]
        if data.state != "running" or not waiting:
            return line.append("nobody waits", _QUIET) if data.state == "running" else Text()
        if prediction is not None and prediction.get("next_s"):
            ahead = prediction["next_s"]
            names = [
                one_line(name) + (f" in {duration_label(s)}" if s >= 1.0 else "") for name, s in ahead.items()
            ]
        else:
            names = [one_line(name) for name in data.waiting or waiting]
        return line.append(", ".join(names), "bold" if prediction or data.waiting else "")

    def _foot(self) -> Text:
        if self.status is None:
            return Text("q quits", _QUIET)
        age_s = max(0.0, self.now_s - unix_seconds(self.status["updated_at"]))
        seen = self.status["updated_at"][11:19]
        return Text(f"q quits; as of {seen} UTC, {duration_label(age_s)} ago", _QUIET)

    # ---- slots ---------------------------------------------------------------------------------

    def _slot_lines(self, width: int, most: int, *, has_colors: bool) -> list[Text]:
        data = self.data
        size = -(-data.num_slots // most)
        names = [
            data.slot_names[first] + (f"+{min(size, data.num_slots - first) - 1}" if size > 1 else "")
            for first in range(0, data.num_slots, size)
        ]
        room = min(max(map(cell_len, names)), max(8, width // 4))
        num_columns = max(1, width - room - 1)
        cells = self._cells(size, num_columns)
        title = Text(f"{data.kind_of_run.slot}s over time", "bold")
        lines = [title]
        for row, name in enumerate(names):
            line = Text().append(_fitted(name, room) + " ", _QUIET)
            for label, number in _runs(cells[row][column] for column in range(num_columns)):
                line.append_text(self._block(label, number, has_colors=has_colors))
            lines.append(line)
        end = duration_label(data.duration_s)
        axis = "0" + end.rjust(max(len(end) + 1, num_columns - 1))
        lines.append(Text(" " * (room + 1) + axis, _QUIET))
        return lines

    def _cells(self, size: int, num_columns: int) -> list[Mapping[int, str]]:
        """Return for each row what it shows in each column: a role, or a job; jobs that share take turns."""
        data = self.data
        num_rows = -(-data.num_slots // size)
        held: list[dict[int, dict[str, float]]] = [defaultdict(dict) for _ in range(num_rows)]
        step_s = max(data.duration_s, 1e-9) / num_columns
        for span in data.spans:
            row, label = held[span.slot // size], span.role or span.job
            last = min(num_columns - 1, int(span.end_s / step_s))
            for column in range(min(num_columns - 1, int(span.start_s / step_s)), last + 1):
                here_s = min(span.end_s, (column + 1) * step_s) - max(span.start_s, column * step_s)
                row[column][label] = row[column].get(label, 0.0) + max(0.0, here_s)
        rows: list[Mapping[int, str]] = []
        for row in held:
            shown: dict[int, str] = defaultdict(str)
            for column, seconds in row.items():
                most = max(seconds.values())
                if most > 0.0:
                    labels = [label for label in seconds if seconds[label] > 0.5 * most]
                    shown[column] = labels[column % len(labels)]
            rows.append(shown)
        return rows

    def _block(self, label: str, number: int, *, has_colors: bool) -> Text:
        """Return the cells of one job, with its mark and as much of its name as fits."""
        if not label:
            return Text("." * number if not has_colors else " " * number, _QUIET)
        mark = self._mark(label)
        text = _fitted(f"{mark} {one_line(label)}", number) if number > 4 else mark * number
        if not has_colors:
            return Text(text.rstrip() + mark * (number - cell_len(text.rstrip())))
        color = ROLE_COLORS.get(label) or self._colors().get(label, "#a6a6a6")
        return Text(text, Style(bgcolor=color, color=ink_on(color)))

    def _mark(self, label: str) -> str:
        names = [job.name for job in self.data.jobs]
        return MARKS[names.index(label) % len(MARKS)] if label in names else label[0]

    def _colors(self) -> Mapping[str, str]:
        return colors_of(job.name for job in self.data.jobs)

    # ---- jobs ----------------------------------------------------------------------------------

    def _job_lines(self, width: int, most: int, is_ascii: bool) -> list[Text]:
        data = self.data
        metric = metric_of(data) or ""
        jobs = sorted(data.jobs, key=self._rank)
        shown = jobs if len(jobs) <= most else jobs[: max(1, most - 1)]
        points = {
            job.name: [value for point in job.curve if (value := point.metrics.get(metric)) is not None]
            for job in jobs
        }
        every = [value for values in points.values() for value in values]
        ends = (min(every), max(every)) if every else (0.0, 1.0)
        names = [data.kind_of_run.job, *(one_line(job.name) for job in shown)]
        name_room = min(max(map(cell_len, names)), max(8, width // 4))
        epochs = [_epochs(job) for job in shown]
        epoch_room = max(6, *map(len, epochs))
        with_state, with_best = width >= 48, width >= 64
        fixed = 3 + name_room + epoch_room + 10 + (10 if with_state else 0) + (9 if with_best else 0)
        spark_room = max(_LEAST_SPARK, width - fixed)
        nothing = "no value yet" if any(job.epochs for job in jobs) else "no epoch yet"
        title = metric_words(metric) if metric else nothing
        head = f"  {_fitted(data.kind_of_run.job, name_room)} {'state     ' if with_state else ''}"
        head += f"{'epochs'.rjust(epoch_room)} {_fitted(title, spark_room)}{'last'.rjust(9)}"
        lines = [Text(head + ("best".rjust(9) if with_best else ""), "bold")]
        for job, epoch in zip(shown, epochs, strict=True):
            line = Text()
            color = self._colors()[job.name]
            line.append(self._mark(job.name), Style(bgcolor=color, color=ink_on(color))).append(" ")
            line.append(_fitted(one_line(job.name), name_room) + " ")
            if with_state:
                line.append(_fitted(job.state, 9) + " ", "red" if job.state == "failed" else "")
            line.append(epoch.rjust(epoch_room) + " ")
            values = points[job.name]
            line.append(_sparkline(values, ends, spark_room, _ASCII_BARS if is_ascii else _BARS))
            line.append(_number(values[-1] if values else None))
            if with_best:
                best = (max if data.measured_by.more_is_better else min)(values) if values else None
                line.append(_number(best if metric == data.measured_by.metric else job.best_loss))
            lines.append(line)
        if len(shown) < len(jobs) and len(shown) < most:
            rest = Counter(job.state for job in jobs[len(shown) :])
            counts = ", ".join(f"{number} {state}" for state, number in rest.items())
            lines.append(Text(f"and {len(jobs) - len(shown)} more: {counts}", _QUIET))
        return lines

    def _rank(self, job: JobReport) -> tuple[int, float]:
        """The order of the jobs: those that train, those that wait, then the best ones that are done."""
        order = ("", *_WAITING, *_OVER)
        place = order.index(job.state) if job.state in order else 0
        sign = -1.0 if self.data.measured_by.more_is_better else 1.0
        return place, sign * job.best if job.state in _OVER and job.best is not None else 0.0


def _epochs(job: JobReport) -> str:
    return f"{job.epochs}" if job.max_epochs is None else f"{job.epochs}/{job.max_epochs}"


def _number(value: float | None) -> str:
    return ("-" if value is None else f"{value:.4g}").rjust(9)


def _fitted(text: str, width: int) -> str:
    """Return the text in exactly so many cells."""
    return set_cell_size(text, width)


def _runs(labels: Iterable[str]) -> Iterator[tuple[str, int]]:
    for label, some in groupby(labels):
        yield label, sum(1 for _ in some)


def _sparkline(values: Sequence[float], ends: tuple[float, float], width: int, bars: str) -> str:
    """Return a curve in `width` cells, which show the last of their values; all curves have one scale."""
    if len(values) > width:
        values = [values[(cell + 1) * len(values) // width - 1] for cell in range(width)]
    low, high = ends
    scale = (len(bars) - 1) / (high - low) if high > low else 0.0
    return "".join(bars[round((value - low) * scale)] for value in values).ljust(width)
