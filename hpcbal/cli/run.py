"""`hpcbal run`: train what a file describes."""

from __future__ import annotations

import argparse

from hpcbal.cli.options import Subparsers, add_config, add_launch
from hpcbal.cli.start import start
from hpcbal.errors import InputError


def add_parser(verbs: Subparsers) -> None:
    """Add the verb to the program's parser."""
    parser = verbs.add_parser(
        "run",
        help="train what a file describes, or continue where it stopped",
        description="Train an ensemble of DNNs, a job on parameter servers, or many such jobs, under mpirun, "
        "srun or jsrun; without a launcher, start mpirun. The same command continues where an earlier run "
        "stopped.",
    )
    add_config(parser)
    add_launch(parser)
    parser.add_argument(
        "--resume", action="store_true", help="continue an earlier run, never start a new one"
    )
    parser.add_argument("--retry-failed", action="store_true", help="try failed DNNs or jobs again")
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="try it: train one epoch of each DNN on few samples, in a new directory DIR/smoke/...; the run "
        "itself does not begin",
    )
    parser.set_defaults(function=run)


def run(args: argparse.Namespace) -> int:
    """Start or join the run."""
    if args.smoke and (args.resume or args.retry_failed):
        raise InputError("--smoke: begins anew each time; leave out --resume and --retry-failed")
    return start(args, resume=args.resume, retry_failed=args.retry_failed, smoke=args.smoke)
