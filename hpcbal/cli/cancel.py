"""`hpcbal cancel`: stop the batch job of a run, with checkpoints, so that it does not come back."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from hpcbal.cli.options import Subparsers, add_json, print_json, print_text
from hpcbal.errors import ExitCode
from hpcbal.processes import say


def add_parser(verbs: Subparsers) -> None:
    """Add the verb to the program's parser."""
    parser = verbs.add_parser(
        "cancel",
        help="stop the batch job of a run",
        description="Stop the batch jobs that 'hpcbal submit' has made for runs. A job that waits is removed "
        "from the queue; one that runs is asked to stop, writes checkpoints, and does not come back. "
        "'hpcbal submit' continues the run later.",
    )
    parser.add_argument("directories", type=Path, nargs="+", metavar="DIR", help="output directories of runs")
    parser.add_argument(
        "--now", action="store_true", help="kill what runs; what it did since its last checkpoints is lost"
    )
    add_json(parser)
    parser.set_defaults(function=run)


def run(args: argparse.Namespace) -> int:
    """Cancel the jobs, and say what was done."""
    from hpcbal.cli.submitting.cancelling import cancel

    found = cancel(args.directories, at_once=args.now)
    if args.json:
        print_json([each.values() for each in found])
    for each in found:
        line = each.line(time.time())
        if each.has_failed:
            say(f"hpcbal: {line}")
        elif not args.json:
            print_text(line)
    return int(ExitCode.WRONG_INPUT if any(each.has_failed for each in found) else ExitCode.DONE)
