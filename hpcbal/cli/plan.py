"""`hpcbal plan`: flotillas, placement, ranks, memory and wall time, before a job is queued."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from hpcbal.cli.options import (
    Answer,
    Subparsers,
    add_config,
    add_json,
    add_slots_per_node,
    positive,
    print_answer,
    print_warning,
)
from hpcbal.processes import without_garbage_collection


def add_parser(verbs: Subparsers) -> None:
    """Add the verb to the program's parser."""
    parser = verbs.add_parser(
        "plan",
        help="show placement, wall time and the ranks to request",
        description="Show which DNNs would train together and where, from measured or given rates, how long "
        "the run takes, and whether it fits. Of jobs on parameter servers: ranks, the command that starts "
        "them, and what an earlier run has measured. Runs no user code unless --open-data is given.",
    )
    add_config(parser)
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="a profile.json, or an output directory that holds one"
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--slots", type=positive, metavar="N", help="trainer slots in total, instead of --nodes"
    )
    size.add_argument("--nodes", type=positive, default=1, metavar="N", help="nodes (default: 1)")
    add_slots_per_node(parser)
    parser.add_argument(
        "--cpus-per-task",
        type=positive,
        metavar="N",
        help="cores of a rank, for the srun line (default: none)",
    )
    data = parser.add_mutually_exclusive_group()
    data.add_argument("--samples", type=positive, metavar="N", help="samples of the dataset")
    data.add_argument(
        "--open-data", action="store_true", help="open the dataset to find its size; runs its code"
    )
    parser.add_argument("--memory", type=_bytes, metavar="SIZE", help="memory of a node, e.g. 256GiB")
    add_json(parser)
    parser.set_defaults(function=run)


def run(args: argparse.Namespace) -> int:
    """Make the plan and print it."""
    return print_answer(answer(args, print_warning), as_json=args.json)


@without_garbage_collection()
def answer(args: argparse.Namespace, warn: Callable[[str], None]) -> Answer:
    """Make the plan, as the kind of run does it."""
    from hpcbal.config import load_config
    from hpcbal.kinds import KINDS

    config = load_config(args.config, args.overrides, warn=warn)
    return KINDS[config.kind].verb("planning")(args, config, warn)


def _bytes(text: str) -> int:
    """Argument type: bytes as a number, or with a unit."""
    from hpcbal.config.schema.section import parse_bytes

    try:
        return int(parse_bytes(int(text) if text.isdecimal() else text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"got {text!r}, allowed: bytes, e.g. 256GiB ({error})") from None
