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
    nodes,
    numbers,
    positive,
    print_answer,
    print_warning,
    share,
)
from hpcbal.garbage import without_garbage_collection


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
        "--slots",
        type=numbers,
        metavar="N,N,...",
        help="trainer slots in total, instead of --nodes; several numbers are shown side by side",
    )
    size.add_argument("--gpus", dest="slots", type=numbers, metavar="N,N,...", help="the same as --slots")
    size.add_argument(
        "--nodes",
        type=nodes,
        default=1,
        metavar="N|auto",
        help="nodes (default: 1); auto: as many as keep the slots as busy as --use says",
    )
    parser.add_argument(
        "--use",
        type=share,
        metavar="SHARE",
        help="choose the largest allocation whose slots are busy for this share of their time, of those of "
        "--slots N,N,... or with --nodes auto",
    )
    add_slots_per_node(parser, hints=("--gpus-per-node",))
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
    parser.add_argument(
        "--learn-from",
        type=Path,
        action="append",
        metavar="DIR",
        help="learn how far predictions are off from the runs in this output directory, or in a directory of "
        "them (default: from all your earlier runs on this cluster); may be repeated",
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

    sizes = args.slots or []
    _check_use(args, len(sizes))
    config = load_config(args.config, args.overrides, warn=warn)
    if len(sizes) > 1:
        from hpcbal.cli.planning.prediction import compared, sources_of

        per_node = args.slots_per_node
        return compared(config, sources_of(args), sizes, use=args.use, slots_per_node=per_node, warn=warn)
    args = argparse.Namespace(**vars(args) | {"slots": sizes[0] if sizes else None})
    if args.nodes == "auto":
        from hpcbal.cli.planning.prediction import largest_that_keeps, sources_of
        from hpcbal.planning.ensemble_plan import known_slots_per_node

        per_node = known_slots_per_node(config, args.slots_per_node)
        found = largest_that_keeps(config, sources_of(args), use=args.use, slots_per_node=per_node, warn=warn)
        args.nodes = found.num_nodes
    return KINDS[config.kind].verb("planning")(args, config, warn)


def _check_use(args: argparse.Namespace, num_sizes: int) -> None:
    """Raise InputError if `--use` has nothing to choose from, or `--nodes auto` nothing to choose by."""
    from hpcbal.errors import InputError

    if args.nodes == "auto" and args.use is None:
        raise InputError("--nodes auto: give --use SHARE, how busy the slots must be, such as --use 0.8")
    if args.use is not None and args.nodes != "auto" and num_sizes < 2:
        raise InputError("--use: works with --nodes auto, or with several numbers, such as --slots 4,8,16")


def _bytes(text: str) -> int:
    """Argument type: bytes as a number, or with a unit."""
    from hpcbal.config.schema.section import parse_bytes

    try:
        return int(parse_bytes(int(text) if text.isdecimal() else text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"got {text!r}, allowed: bytes, e.g. 256GiB ({error})") from None
