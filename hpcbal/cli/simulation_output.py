"""What `hpcbal simulate --output DIR` writes: figures as JSON, charts, and a page per schedule."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from hpcbal.cli.simulation_plots import CHARTS, draw_comparison
from hpcbal.cli.simulation_report import report_of
from hpcbal.cli.simulation_text import rows_to_dict
from hpcbal.report import write_page
from hpcbal.report.drawing.png import can_write_png, to_png
from hpcbal.report.drawing.svg import to_svg
from hpcbal.simulator import Row, Scenario
from hpcbal.telemetry.files.atomic_file import output_error, write_atomic

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

    The pages show the first seed's run of each schedule on each number of GPUs.

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
        if row.gpus <= MAX_SLOTS_OF_A_PAGE:
            path = directory / f"{row.paradigm}-{row.gpus}.html"
            run = scenario.run(row.gpus, row.paradigm, 0)
            write_page(report_of(scenario, run, row.paradigm, 0), path)
            written.append(path)
    return written
