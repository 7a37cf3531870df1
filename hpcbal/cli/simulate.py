"""`hpcbal simulate`: how long an ensemble takes, under any schedule, on any number of GPUs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbal.cli.options import Subparsers, add_json, positive, print_json

if TYPE_CHECKING:
    from hpcbal.simulator import Scenario

DEFAULT_SEEDS = 5


def add_parser(verbs: Subparsers) -> None:
    """Add the verb to the program's parser."""
    parser = verbs.add_parser(
        "simulate",
        help="tell how long an ensemble takes, on any number of GPUs",
        description="Run an ensemble in virtual time, with the state machine and the policies of a real run: "
        "makespan, waiting and overheads under each schedule, beside a lower bound. Every DNN trains to its "
        "max_epochs, or to a share of them that is drawn (--epochs).",
    )
    parser.add_argument("config", type=Path, nargs="?", metavar="CONFIG", help="YAML file of the ensemble")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a key of CONFIG, e.g. --set schedule.alpha=0.9; may be repeated",
    )
    parser.add_argument("--preset", metavar="NAME", help="instead of CONFIG: an ensemble of a paper")
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="rates: a profile.json, or its directory"
    )
    parser.add_argument(
        "--gpus", type=_numbers, metavar="N,N,...", help="numbers of GPUs (default: one node's; the preset's)"
    )
    parser.add_argument(
        "--gpus-per-node", type=positive, metavar="N", help="trainer slots per node (default: slots.per_node)"
    )
    parser.add_argument(
        "--paradigm", type=_names, metavar="NAME,...", help="schedules, or all (default: schedule.paradigm)"
    )
    parser.add_argument(
        "--seeds",
        type=positive,
        default=DEFAULT_SEEDS,
        metavar="N",
        help=f"average over so many (default: {DEFAULT_SEEDS})",
    )
    parser.add_argument(
        "--samples",
        type=positive,
        metavar="N",
        help="samples of the dataset (default: look into the dataset)",
    )
    parser.add_argument(
        "--epochs",
        type=_share,
        default=1.0,
        metavar="SHARE",
        help="least share of max_epochs after which DNNs converge, drawn evenly from there to 1 (default: 1)",
    )
    parser.add_argument(
        "--output",
        "-o",
        type=Path,
        metavar="DIR",
        help="write the figures, charts and a page per schedule and number of GPUs there",
    )
    add_json(parser)
    parser.set_defaults(function=run)


def run(args: argparse.Namespace) -> int:
    """Simulate and print the table."""
    from hpcbal.cli.simulation_text import render_rows, rows_to_dict
    from hpcbal.control import PARADIGM_NAMES
    from hpcbal.simulator import compare

    scenario = _scenario(args)
    paradigms = args.paradigm or [scenario.settings.paradigm]
    if "all" in paradigms:
        paradigms = list(PARADIGM_NAMES)
    rows = compare(scenario, args.gpus or scenario.gpus, paradigms, range(args.seeds))
    if args.output is not None:
        from hpcbal.cli.simulation_output import write_output

        files = write_output(args.output, scenario, rows, args.seeds)
        print(f"hpcbal: wrote {len(files)} files to {args.output}", file=sys.stderr)
    if args.json:
        print_json(rows_to_dict(scenario, rows, args.seeds))
    else:
        print("\n".join(render_rows(scenario, rows, args.seeds)))
    return 0


def _scenario(args: argparse.Namespace) -> Scenario:
    from hpcbal.errors import InputError
    from hpcbal.simulator import load_preset

    if (args.config is None) == (args.preset is None):
        raise InputError("give either CONFIG or --preset NAME")
    if args.preset is None:
        from hpcbal.cli.config_scenario import scenario_of_config

        return scenario_of_config(
            args.config,
            args.overrides,
            profile=args.profile,
            gpus_per_node=args.gpus_per_node,
            num_samples=args.samples,
            least_epochs_share=args.epochs,
        )
    given = {
        "--set": bool(args.overrides),
        "--profile": args.profile is not None,
        "--gpus-per-node": args.gpus_per_node is not None,
        "--samples": args.samples is not None,
        "--epochs": args.epochs != 1.0,
    }
    wrong = [option for option, is_given in given.items() if is_given]
    if wrong:
        raise InputError(f"{', '.join(wrong)}: belongs to CONFIG; a preset has values of its own")
    return load_preset(args.preset)


def _numbers(text: str) -> list[int]:
    """`20,40` as numbers >= 1, no repetitions."""
    return list(dict.fromkeys(positive(part.strip()) for part in text.split(",")))


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",")))


def _share(text: str) -> float:
    """An argument type: a number above 0, at most 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value <= 1.0:
        raise argparse.ArgumentTypeError(f"got {text!r}, allowed: a number above 0, at most 1")
    return value
