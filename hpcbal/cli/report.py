"""`hpcbal report` and `hpcbal compare`: one page about a run, or runs side by side, from files alone."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcbal.cli.options import Subparsers, add_json, print_json, print_text, print_warning
from hpcbal.processes import say

if TYPE_CHECKING:
    from hpcbal.report.model import ReportData


def add_parser(verbs: Subparsers) -> None:
    """Add the verb to the program's parser."""
    parser = verbs.add_parser(
        "report",
        help="make a page and plots about a run",
        description="Make one self-contained HTML page and plots about a run, in whatever state it is; also "
        "works on a copy of its directory.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="output directory of a run")
    parser.add_argument(
        "--output",
        "-o",
        type=Path,
        metavar="FILE",
        help="the page (default: DIR/report.html); plots go beside it, into FILE's name with -plots",
    )
    parser.add_argument("--no-plots", action="store_true", help="make the page only")
    add_json(parser)
    parser.set_defaults(function=run)


def run(args: argparse.Namespace) -> int:
    """Make the page and the plots; with --json, print the values instead."""
    if args.json:
        print_json(values(args, print_warning))
        return 0
    made = write(args, print_warning)
    print_text(f"report: {made.page}")  # only now: after an error no line reports success
    if not args.no_plots:
        from hpcbal.report.drawing.shapes import can_write_png
        from hpcbal.report.page.page import NO_MATPLOTLIB

        files, kinds = made.files, sorted({path.suffix[1:].upper() for path in made.files})
        print_text(
            f"plots:  {made.plots}/ ({len(files)} files, {' and '.join(kinds)})"
            if files
            else "plots:  none yet"
        )
        if not can_write_png():
            say(f"hpcbal: {NO_MATPLOTLIB}")
    return 0


def values(args: argparse.Namespace, warn: Callable[[str], None]) -> dict[str, Any]:
    """Return the values of the report, as `--json` prints them."""
    from hpcbal.telemetry.files.atomic_file import to_jsonable

    data = _read(args, warn)
    by = data.measured_by
    names = {**data.kind_of_run.report_names, "best": by.best_key, "final": by.final_key}
    found: dict[str, Any] = to_jsonable(data, names)
    return found


@dataclass(frozen=True, slots=True)
class Made:
    """A report.

    Attributes:
        page: the page.
        plots: the directory of plots.
        files: the plots in it.
    """

    page: Path
    plots: Path
    files: Sequence[Path]


def write(args: argparse.Namespace, warn: Callable[[str], None]) -> Made:
    """Make the page and the plots."""
    from hpcbal.report.page.page import START_OF_PAGE, plots_beside, write_page, write_plots
    from hpcbal.telemetry.files.atomic_file import check_own
    from hpcbal.telemetry.files.run_directory import RunDirectory

    if args.output is not None:
        check_own(args.output, START_OF_PAGE, "page")
    data = _read(args, warn)
    page = args.output or RunDirectory(args.directory).report
    write_page(data, page)
    plots = plots_beside(page)
    return Made(page, plots, [] if args.no_plots else write_plots(data, plots))


def _read(args: argparse.Namespace, warn: Callable[[str], None]) -> ReportData:
    from hpcbal.report.reading.run_files import read_run

    data = read_run(args.directory)
    if data.problem:
        warn(data.problem)
    return data


def add_compare_parser(verbs: Subparsers) -> None:
    """Add the verb to the program's parser."""
    parser = verbs.add_parser(
        "compare",
        help="show runs side by side",
        description="Show runs side by side, in whatever state they are: best and last values of their DNNs, "
        "epochs, time, slot-hours, and the settings that differ.",
    )
    parser.add_argument("directories", type=Path, nargs="+", metavar="DIR", help="output directories of runs")
    parser.add_argument(
        "--metric", metavar="NAME", help="compare DNNs by this metric (default: what their stop rule watches)"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write the comparison as one page")
    add_json(parser)
    parser.set_defaults(function=compare)


def compare(args: argparse.Namespace) -> int:
    """Print the tables, or JSON; write the page."""
    from hpcbal.report.comparing.reading import read_comparison
    from hpcbal.report.comparing.text import render_comparison
    from hpcbal.telemetry.files.atomic_file import check_own, to_jsonable

    if args.html is not None:
        from hpcbal.report.page.page import START_OF_PAGE, write_comparison_page

        check_own(args.html, START_OF_PAGE, "page")
    comparison = read_comparison(args.directories, args.metric)
    for problem in comparison.problems:
        print_warning(problem)
    if args.html is not None:
        write_comparison_page(comparison, args.html)
    if args.json:
        print_json(to_jsonable(comparison))
        return 0
    print_text(render_comparison(comparison).rstrip("\n"))
    if args.html is not None:
        print_text(f"\npage: {args.html}")
    return 0
