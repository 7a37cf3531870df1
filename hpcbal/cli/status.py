"""`hpcbal status`: show how a run is doing, from its files alone."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from hpcbal.cli.options import Subparsers, add_json, print_json, writing_stdout

REFRESH_S = 2.0
STARTING_S = 60.0
"""For so long, `--watch` waits for the first status of a run that holds its directory."""

_CLEAR = "\x1b[H\x1b[2J"


def add_parser(verbs: Subparsers) -> None:
    """Add the verb to the program's parser."""
    parser = verbs.add_parser(
        "status",
        help="show how a run is doing",
        description="Show how a run is doing, from status.json in its output directory; also works over ssh "
        "and after the run.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="output directory of a run")
    parser.add_argument("--watch", action="store_true", help="show it again every 2 s until the run ends")
    add_json(parser)
    parser.set_defaults(function=run)


def run(args: argparse.Namespace) -> int:
    """Show the status once, or until the run ends; --json --watch prints one line of JSON per update."""
    from hpcbal.telemetry.files.run_directory import RunDirectory
    from hpcbal.telemetry.views.read_status import read_status, render_status
    from hpcbal.telemetry.views.status import death_note, has_ended

    redraw = args.watch and not args.json and sys.stdout.isatty()
    files = RunDirectory(args.directory)
    until_s = time.monotonic() + STARTING_S
    while args.watch and files.lock.exists() and not files.status.exists() and time.monotonic() < until_s:
        time.sleep(REFRESH_S)  # a run holds the directory, and is about to write its status
    while True:
        now = time.time()
        status = read_status(args.directory)
        if args.json:
            print_json(status, indent=None if args.watch else 2)
        else:
            text = render_status(status, now)
            with writing_stdout():
                print((_CLEAR if redraw else "") + text.rstrip("\n"))
        over = has_ended(status) or death_note(status, now) is not None
        if not args.watch or over:
            return 0
        if not args.json and not redraw:
            print(flush=True)
        time.sleep(REFRESH_S)
