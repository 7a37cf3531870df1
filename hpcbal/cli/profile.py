"""`hpcbal profile`: measure training rates, or record the operations of a parameter-server job, then stop."""

from __future__ import annotations

import argparse

from hpcbal.cli.options import Subparsers, add_config, add_launch, positive
from hpcbal.cli.start import start
from hpcbal.errors import InputError

DEFAULT_STEPS = 100
"""As [ASGD] Sec. 4.1 records."""


def add_parser(verbs: Subparsers) -> None:
    """Add the verb to the program's parser."""
    parser = verbs.add_parser(
        "profile",
        help="measure the training rates of all DNNs, or the operations of a job, then stop",
        description="Measure how fast each DNN trains on 1, 2, ... slots and write profile.json to the "
        "output directory, for `hpcbal plan` and for the run. With --operations: take some steps of an async "
        "parameter-server job with one worker and one server, and write what they did to operations.jsonl, "
        "for forecasts.",
    )
    add_config(parser)
    parser.add_argument(
        "--operations", action="store_true", help="record the operations of a parameter-server job instead"
    )
    parser.add_argument(
        "--steps", type=positive, metavar="N", help="steps to record with --operations (default: 100)"
    )
    add_launch(parser)
    parser.set_defaults(function=run)


def run(args: argparse.Namespace) -> int:
    """Start or join the profiling run."""
    if not args.operations:
        if args.steps is not None:
            raise InputError("--steps: works with --operations only; add it, or leave --steps out")
        return start(args, profile_only=True)
    steps = DEFAULT_STEPS if args.steps is None else args.steps
    return start(args, num_operation_steps=steps)
