"""`hpcbal plan`: flotillas, placement and ranks, before anything is queued."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hpcbal.cli.options import Subparsers, add_config, add_json, positive, print_json


def add_parser(verbs: Subparsers) -> None:
    """Add the verb to the program's parser."""
    parser = verbs.add_parser(
        "plan",
        help="show flotillas, placement and the ranks to ask for",
        description="Show which DNNs would train together and where, from measured or given rates, as if all "
        "DNNs of a flotilla converged together. No user code runs.",
    )
    add_config(parser)
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="a profile.json, or an output directory that holds one"
    )
    parser.add_argument("--nodes", type=positive, default=1, metavar="N", help="nodes (default: 1)")
    parser.add_argument(
        "--gpus-per-node", type=positive, metavar="N", help="trainer slots per node (default: slots.per_node)"
    )
    add_json(parser)
    parser.set_defaults(function=run)


def run(args: argparse.Namespace) -> int:
    """Make the plan and print it."""
    from hpcbal.cli.ensemble_plan import gpus_per_node, make_plan, plan_to_dict, render_plan
    from hpcbal.cli.plan_rates import find_rates
    from hpcbal.config import load_config

    config = load_config(args.config, args.overrides)
    per_node = gpus_per_node(config, args.gpus_per_node)
    rates = find_rates(config, per_node, args.profile, command=str(args.config))
    plan = make_plan(config, rates, num_nodes=args.nodes, gpus_per_node=per_node)
    command = ["hpcbal", "run", str(args.config)]
    for override in args.overrides:
        command += ["--set", override]
    if args.json:
        print_json(plan_to_dict(plan, command))
    else:
        print("\n".join(render_plan(plan, command)))
        print(f"hpcbal: rates from {rates.source}", file=sys.stderr)
    return 0
