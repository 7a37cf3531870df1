"""Write the page and the plots to disk."""

from __future__ import annotations

import os
from pathlib import Path

from hpcbal.report.charts.all_charts import WIDE, draw_charts
from hpcbal.report.drawing.png import can_write_png, to_png
from hpcbal.report.drawing.svg import to_svg
from hpcbal.report.model import ReportData
from hpcbal.report.page.document import render_page
from hpcbal.telemetry.files.atomic_file import output_error, write_atomic

NO_MATPLOTLIB = (
    "wrote SVG plots only, because matplotlib is not installed; for PNG plots: pip install 'hpcbal[report]'"
)


def write_page(data: ReportData, path: str | os.PathLike[str]) -> None:
    """Write the page to `path`; an existing file is replaced atomically.

    Raises:
        OutputError: if the file cannot be written.
    """
    write_atomic(path, render_page(data))


def plots_beside(page: Path) -> Path:
    """The directory of a page's plots."""
    return page.with_name(f"{page.stem}-plots")


def write_plots(data: ReportData, directory: str | os.PathLike[str]) -> list[Path]:
    """Write every chart as SVG and, if matplotlib is installed, as PNG.

    Args:
        directory: where to write; created if missing. Files with the same names are replaced.

    Returns:
        The paths of the files.

    Raises:
        OutputError: if a file or the directory cannot be written.
    """
    root = Path(directory)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise output_error(root, error, "make the directory of the plots") from error
    written = []
    for name, drawing in draw_charts(data, WIDE).items():
        contents = {"svg": to_svg(drawing, standalone=True).encode()}
        if can_write_png():
            contents["png"] = to_png(drawing)
        for suffix, content in contents.items():
            path = root / f"{name}.{suffix}"
            write_atomic(path, content)
            written.append(path)
    return written
