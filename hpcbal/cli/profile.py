"""`hpcbal profile`: measure training rates, then stop."""

from __future__ import annotations

import argparse

from hpcbal.cli.options import Subparsers, add_config, add_launch
from hpcbal.cli.start import start


def add_parser(verbs: Subparsers) -> None:
    """Add the verb to the program's parser."""
    parser = verbs.add_parser(
        "profile",
        help="measure the training rates of all DNNs, then stop",
        description="Measure how fast each DNN trains on 1, 2, ... slots and write profile.json to the "
        "output directory, for `hpcbal plan` and for the run.",
    )
    add_config(parser)
    add_launch(parser)
    parser.set_defaults(function=run)


def run(args: argparse.Namespace) -> int:
    """Start or join the profiling run."""
    return start(args, resume=False, retry_failed=False, profile_only=True)
