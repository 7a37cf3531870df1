"""`hpcbal compare`: runs side by side, from their files alone."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpcbal.cli.options import Subparsers, add_json, print_json, print_text, print_warning


def add_parser(verbs: Subparsers) -> None:
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
    parser.set_defaults(function=run)


def run(args: argparse.Namespace) -> int:
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
