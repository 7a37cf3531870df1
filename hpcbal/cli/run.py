"""`hpcbal run` and `hpcbal profile`: train what a file describes, or measure it; both need ranks."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcbal import env
from hpcbal.cli.options import Subparsers, add_config, add_launch, positive
from hpcbal.errors import InputError

if TYPE_CHECKING:
    from hpcbal.runtime.handoff.launch_dir import RunRequest


def start(args: argparse.Namespace, **how: Any) -> int:
    """Run, or start the ranks that run.

    Args:
        args: parsed arguments of `run` or `profile`.
        how: see `RunRequest`.

    Returns:
        The exit code.

    Raises:
        HpcbalError: for errors that the user can fix.
    """
    request = request_of(args, **how)
    from hpcbal.config import add_import_roots
    from hpcbal.runtime import launch

    add_import_roots(args.config)
    return launch.run(request, args.argv)


def request_of(args: argparse.Namespace, **how: Any) -> RunRequest:
    """Return the request of a start; arguments and errors as for `start`."""
    output = args.output or env.read("HPCBAL_OUTPUT")
    level = args.log_level or _log_level()
    from hpcbal.runtime.handoff.launch_dir import RunRequest

    return RunRequest(
        config_path=args.config,
        overrides=tuple(args.overrides),
        output=Path(output) if output is not None else None,
        log_level=level,
        **how,
    )


def _log_level() -> str:
    given = env.read("HPCBAL_LOG_LEVEL")
    if given is None:
        return "INFO"
    if given.upper() not in env.LOG_LEVELS:
        raise InputError(f"HPCBAL_LOG_LEVEL: got {given!r}, allowed: {', '.join(env.LOG_LEVELS)}")
    return given.upper()


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


DEFAULT_STEPS = 100
"""As [ASGD] Sec. 4.1 records."""


def add_profile_parser(verbs: Subparsers) -> None:
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
    parser.set_defaults(function=profile)


def profile(args: argparse.Namespace) -> int:
    """Start or join the profiling run."""
    if not args.operations:
        if args.steps is not None:
            raise InputError("--steps: works with --operations only; add it, or leave --steps out")
        return start(args, profile_only=True)
    steps = DEFAULT_STEPS if args.steps is None else args.steps
    return start(args, num_operation_steps=steps)
