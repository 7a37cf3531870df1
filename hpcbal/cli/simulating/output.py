"""Write the files of `hpcbal simulate --output DIR`: figures as JSON, charts, and a page per schedule."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import hpcbal
from hpcbal.cli.simulating.text import rows_to_dict
from hpcbal.control.paradigms import INDEPENDENT
from hpcbal.report.drawing.axes import AXIS_HEIGHT, LABEL_SIZE, Scale, draw_left, number_ticks
from hpcbal.report.drawing.names import PALETTE
from hpcbal.report.drawing.shapes import INK, QUIET, Drawing, Sheet, can_write_png, text_width, to_png, to_svg
from hpcbal.report.model import JobReport, Overhead, Preprocessing, ReportData, RoundReport, SlotSpan, SlotUse
from hpcbal.report.page.page import write_page
from hpcbal.report.reading.replay import slot_names
from hpcbal.simulator.comparison import Row
from hpcbal.simulator.record import PROFILE, SAVE, START, TRAIN, WAIT, RoundRecord, SimulatedRun
from hpcbal.simulator.scenario import Scenario, cluster_of
from hpcbal.telemetry.files.atomic_file import output_error, write_atomic

_TOP, _HEIGHT, _LEFT, _KEY_HEIGHT = 36.0, 220.0, 64.0, 26.0
_TITLE_SIZE = 13.0
_GROUP_WIDTH = 96.0
_LEAST_WIDTH = 520.0

CHARTS: dict[str, tuple[str, Callable[[Row], float]]] = {
    "speedup": ("Speed-up over independent", lambda row: row.speedup_vs_independent),
    "makespan": ("Makespan over its lower bound", lambda row: row.over_lower_bound),
    "waiting": ("Seconds without a DNN, per slot", lambda row: row.wait_s_per_slot),
}
"""File name -> (title, value)."""


def draw_comparison(name: str, rows: Sequence[Row], scenario_name: str) -> Drawing:
    """Draw one of CHARTS: a group of bars per number of slots, one bar per schedule.

    Args:
        rows: at least one.
    """
    title, value = CHARTS[name]
    slots = list(dict.fromkeys(row.slots for row in rows))
    paradigms = list(dict.fromkeys(row.paradigm for row in rows))
    width = max(_LEAST_WIDTH, _LEFT + _GROUP_WIDTH * len(slots) + 8.0)
    sheet = Sheet()
    sheet.text(_LEFT, 18.0, title, _TITLE_SIZE, bold=True)
    top = _TOP + _KEY_HEIGHT
    bottom = top + _HEIGHT
    y = Scale(0.0, max(1e-9, *(value(row) for row in rows)), bottom, top)
    draw_left(sheet, y, number_ticks(0.0, y.high, 5), _LEFT, width - 8.0)
    _draw_key(sheet, paradigms)
    step = (width - 8.0 - _LEFT) / len(slots)
    bar = 0.8 * step / len(paradigms)
    for row in rows:
        group, place = slots.index(row.slots), paradigms.index(row.paradigm)
        x = _LEFT + step * (group + 0.1) + bar * place
        height = bottom - y(value(row))
        label = f"{row.paradigm} on {row.slots} slots: {value(row):.4g}"
        sheet.rect(x, bottom - height, max(1.0, bar - 2.0), height, PALETTE[place], title=label)
    for group, number in enumerate(slots):
        sheet.text(_LEFT + step * (group + 0.5), bottom + 16.0, str(number), LABEL_SIZE, QUIET, "middle")
    sheet.text(_LEFT - 6.0, bottom + 16.0, "slots", LABEL_SIZE, QUIET, "end")
    return sheet.done(name, f"{title}, {scenario_name}", width, bottom + AXIS_HEIGHT)


def _draw_key(sheet: Sheet, paradigms: Sequence[str]) -> None:
    x = _LEFT
    for place, paradigm in enumerate(paradigms):
        sheet.rect(x, _TOP, 11.0, 11.0, PALETTE[place])
        sheet.text(x + 16.0, _TOP + 10.0, paradigm, LABEL_SIZE, INK)
        x += 32.0 + text_width(paradigm, LABEL_SIZE)


_USE_OF_KIND = {
    TRAIN: "training",
    WAIT: "peers",
    SAVE: "checkpoint",
    START: "starting",
    PROFILE: "profiling",
}


def report_of(scenario: Scenario, run: SimulatedRun, paradigm: str, seed: int) -> ReportData:
    """Return the data of the report on one simulated run."""
    workload = scenario.draw(seed)
    epochs = {spec.dnn_id: spec.stop.max_epochs for spec in workload.specs} | dict(workload.epochs)
    cluster = cluster_of(run.num_slots, scenario.slots_per_node)
    data = ReportData(
        name=scenario.name,
        kind="simulation",
        state="simulated",
        duration_s=run.makespan_s,
        slot_names=slot_names([(node.host, node.num_slots) for node in cluster.nodes]),
        jobs=tuple(
            JobReport(
                dnn.dnn_id,
                "done",
                epochs[dnn.dnn_id],
                wall_time_s=dnn.running_s,
                slot_seconds=dnn.slot_seconds,
            )
            for dnn in run.dnns
        ),
        rounds=() if paradigm == INDEPENDENT else tuple(_round(scenario, each) for each in run.rounds),
        spans=_spans(run),
        use=_use(run),
        preprocessing=Preprocessing(scenario.passes.preprocessing_samples_per_s),
        facts=(
            ("schedule", paradigm),
            ("slots", f"{run.num_slots}, {scenario.slots_per_node} per node"),
            ("seed", str(seed)),
            ("lower bound", f"{run.lower_bound_s:.1f} s"),
            ("hpcbal", hpcbal.__version__),
        ),
    )
    scheduling = run.scheduling_s / run.makespan_s if run.makespan_s else 0.0
    overheads = (
        Overhead("profiling", data.use_share("profiling"), "measuring rates before the first round"),
        Overhead("scheduling", scheduling, "taking decisions; part of starting"),
        Overhead("starting", data.use_share("starting"), "from a round's start to its first step"),
        Overhead("checkpointing", data.use_share("checkpoint"), "writing when a DNN leaves a round"),
    )
    return dataclasses.replace(data, overheads=overheads)


def _round(scenario: Scenario, record: RoundRecord) -> RoundReport:
    seconds = record.end_s - record.start_s
    samples = record.num_passes * scenario.passes.num_positions
    return RoundReport(
        index=record.plan.index,
        start_s=record.start_s,
        end_s=record.end_s,
        num_jobs=len(record.plan.groups),
        num_preprocessors=record.plan.num_preprocessors,
        stream_samples_per_s=samples / seconds if seconds > 0.0 else None,
    )


def _spans(run: SimulatedRun) -> tuple[SlotSpan, ...]:
    """Which DNN held which slot: profiling runs, and DNNs from a round's start until they left it."""
    held = [
        SlotSpan(slot, span.dnn_id, span.start_s, span.end_s, "profiling")
        for span in run.spans
        if span.kind == PROFILE
        for slot in span.slots
    ]
    for record in run.rounds:
        for group in record.plan.groups:
            end_s = record.start_s + record.running_s[group.dnn_id]
            held += [SlotSpan(slot, group.dnn_id, record.start_s, end_s) for slot in group.slots]
    return tuple(held)


def _use(run: SimulatedRun) -> tuple[SlotUse, ...]:
    seconds = {use: run.slot_seconds(kind) for kind, use in _USE_OF_KIND.items()}
    seconds["idle"] = run.idle_seconds()
    return tuple(
        SlotUse(slot, {use: float(by_slot[slot]) for use, by_slot in seconds.items()})
        for slot in range(run.num_slots)
    )


MAX_SLOTS_OF_A_PAGE = 512
"""A page draws one row per slot; a page with more rows would be slow to open."""


def make_directory(directory: Path) -> None:
    """Create the directory that `write_output` fills.

    Raises:
        OutputError: if it is a file or cannot be created.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise output_error(directory, error, "make the directory") from error


def write_output(directory: Path, scenario: Scenario, rows: Sequence[Row], num_seeds: int) -> list[Path]:
    """Write `simulation.json`, the charts as SVG (and PNG where matplotlib is installed), and pages.

    The pages show the first seed's run of each schedule on each number of slots.

    Returns: the files.
    Raises:
        OutputError: if something cannot be written.
    """
    make_directory(directory)
    figures = directory / "simulation.json"
    write_atomic(figures, json.dumps(rows_to_dict(scenario, rows, num_seeds), indent=2) + "\n")
    written = [figures]
    for name in CHARTS:
        drawing = draw_comparison(name, rows, scenario.name)
        contents = {"svg": to_svg(drawing, standalone=True).encode()}
        if can_write_png():
            contents["png"] = to_png(drawing)
        for suffix, content in contents.items():
            path = directory / f"{name}.{suffix}"
            write_atomic(path, content)
            written.append(path)
    for row in rows:
        if row.slots <= MAX_SLOTS_OF_A_PAGE:
            path = directory / f"{row.paradigm}-{row.slots}.html"
            run = scenario.run(row.slots, row.paradigm, 0)
            write_page(report_of(scenario, run, row.paradigm, 0), path)
            written.append(path)
    return written
