"""`hpcbal report`: one page about a run, to pass around, made from its files alone."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpcbal.cli.options import Subparsers, add_json, print_json, print_text, print_warning
from hpcbal.processes import say


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
    from hpcbal.report import read_run, write_page, write_plots
    from hpcbal.report.drawing.shapes import can_write_png
    from hpcbal.report.page.page import NO_MATPLOTLIB, plots_beside
    from hpcbal.telemetry.files.atomic_file import to_jsonable
    from hpcbal.telemetry.files.run_directory import RunDirectory

    data = read_run(args.directory)
    if data.problem:
        print_warning(data.problem)
    if args.json:
        by = data.measured_by
        names = {**data.kind_of_run.report_names, "best": by.best_key, "final": by.final_key}
        print_json(to_jsonable(data, names))
        return 0
    page = args.output or RunDirectory(args.directory).report
    write_page(data, page)
    plots = plots_beside(page)
    files = [] if args.no_plots else write_plots(data, plots)
    print_text(f"report: {page}")  # only now: after an error no line reports success
    if not args.no_plots:
        kinds = sorted({path.suffix[1:].upper() for path in files})
        print_text(
            f"plots:  {plots}/ ({len(files)} files, {' and '.join(kinds)})" if files else "plots:  none yet"
        )
        if not can_write_png():
            say(f"hpcbal: {NO_MATPLOTLIB}")
    return 0
