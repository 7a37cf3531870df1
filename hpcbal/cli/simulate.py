"""`hpcbal simulate`: predict how long a run takes, on any number of slots."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from hpcbal.cli.options import (
    Answer,
    Subparsers,
    add_config,
    add_json,
    add_slots_per_node,
    numbers,
    positive,
    print_answer,
    print_warning,
)

DEFAULT_SEEDS = 5


def add_parser(verbs: Subparsers) -> None:
    """Add the verb to the program's parser."""
    parser = verbs.add_parser(
        "simulate",
        help="predict how long a run takes, on any number of slots",
        description="Run an ensemble in virtual time, with the state machine and the policies of a real run: "
        "makespan, waiting and overheads under each schedule, next to a lower bound. Of a job on parameter "
        "servers: epochs, and how it configures itself; of many such jobs: when they are done.",
    )
    add_config(parser, may_lack=True)
    parser.add_argument("--preset", metavar="NAME", help="an ensemble from a paper, instead of CONFIG")
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="take rates from a profile.json, or from its directory"
    )
    parser.add_argument(
        "--slots",
        type=numbers,
        metavar="N,N,...",
        help="numbers of slots (default: one node's; the preset's); of a job on parameter servers: numbers "
        "of executors; of many such jobs: numbers of machines",
    )
    add_slots_per_node(parser)
    parser.add_argument(
        "--paradigm",
        type=_names,
        metavar="NAME,...",
        help="schedules, auto, or all but auto; of many parameter-server jobs: harmony, isolated, naive, or "
        "all (default: schedule.paradigm)",
    )
    parser.add_argument(
        "--seeds",
        type=positive,
        metavar="N",
        help=f"number of seeds to average over (default: {DEFAULT_SEEDS})",
    )
    _add_ensemble(parser)
    parser.add_argument(
        "--output",
        "-o",
        type=Path,
        metavar="DIR",
        help="write figures, charts and a page per schedule and number of slots to this directory",
    )
    add_json(parser)
    parser.set_defaults(function=run)


def _add_ensemble(parser: argparse.ArgumentParser) -> None:
    """Options that describe the ensemble."""
    parser.add_argument(
        "--samples",
        type=positive,
        metavar="N",
        help="samples of the dataset (default: ask the dataset)",
    )
    parser.add_argument(
        "--epochs",
        type=_epochs,
        default=1.0,
        metavar="SHARE|FILE",
        help="when DNNs converge: the smallest share of max_epochs, from which shares are drawn evenly up to "
        "1, or the results.csv of an earlier run (default: 1, so max_epochs)",
    )
    parser.add_argument(
        "--rate-deviation",
        type=_deviation,
        default=0.0,
        metavar="SHARE",
        help="vary each DNN's rates from seed to seed, with this relative deviation (default: 0; a preset "
        "uses ensemble.rate_deviation)",
    )
    parser.add_argument(
        "--kept-per-node",
        type=_kept,
        default=1.0,
        metavar="SHARE",
        help="share of its rate that a group keeps for each node it spans beyond the fewest possible "
        "(default: 1, so that placement has no effect; a preset uses ensemble.kept_across_nodes)",
    )
    parser.add_argument(
        "--hit-rate",
        type=_share,
        metavar="SHARE",
        help="share of the samples for which the cache of a node has room (default: that of "
        "dataplane.cache_bytes if the dataset is opened and this is a number of bytes, else 0)",
    )
    parser.add_argument(
        "--cost",
        dest="costs",
        type=_cost,
        action="append",
        default=[],
        metavar="NAME=SECONDS",
        help="time spent outside training: build_s, load_s, form_s, checkpoint_s, snapshot_s, pass_s, "
        "scheduling_s, profile_start_s (default: from the preset, or from the run in CONFIG's output "
        "directory, or 0); of a job on parameter servers: send_s, notice_s, control_s, turn_s; of many "
        "such jobs: control_s, start_s, stop_s, disk_bytes_per_s; may be repeated",
    )


def run(args: argparse.Namespace) -> int:
    """Simulate, and print what is predicted."""
    return print_answer(answer(args, print_warning), as_json=args.json)


def answer(args: argparse.Namespace, warn: Callable[[str], None]) -> Answer:
    """Simulate what the file describes, as its kind does it, or a preset, which is an ensemble."""
    from hpcbal.config import load_config
    from hpcbal.errors import InputError
    from hpcbal.kinds import ENSEMBLE, KINDS

    if (args.config is None) == (args.preset is None):
        raise InputError("give either CONFIG or --preset NAME")
    if args.config is None:
        return ENSEMBLE.verb("simulating")(args, None, warn)
    config = load_config(args.config, args.overrides, warn=warn)
    return KINDS[config.kind].verb("simulating")(args, config, warn)


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",")))


def _epochs(text: str) -> float | Path:
    """Argument type: a number above 0, at most 1, or a file."""
    try:
        share = float(text)
    except ValueError:
        return Path(text)
    if not 0.0 < share <= 1.0:
        raise argparse.ArgumentTypeError(f"got {text!r}, allowed: a number above 0, at most 1, or a file")
    return share


def _deviation(text: str) -> float:
    """Argument type: a number, 0 or more."""
    return _number(text, lambda value: 0.0 <= value < math.inf, "a number, 0 or more")


def _kept(text: str) -> float:
    """Argument type: a number above 0, at most 1."""
    return _number(text, lambda value: 0.0 < value <= 1.0, "a number above 0, at most 1")


def _share(text: str) -> float:
    """Argument type: a number from 0 to 1."""
    return _number(text, lambda value: 0.0 <= value <= 1.0, "a number from 0 to 1")


def _number(text: str, is_allowed: Callable[[float], bool], allowed: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not is_allowed(value):
        raise argparse.ArgumentTypeError(f"got {text!r}, allowed: {allowed}")
    return value


def _cost(text: str) -> tuple[str, float]:
    """`load_s=3` as name and number."""
    name, _, value = text.partition("=")
    try:
        return name.strip(), float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text!r}, allowed: NAME=SECONDS, e.g. load_s=3") from None
