"""`hpcbal schema`: the JSON schema of a configuration, for editors."""

from __future__ import annotations

import argparse

from hpcbal.cli.options import Subparsers, print_json
from hpcbal.kinds import DEFAULT_KIND, KINDS


def add_parser(verbs: Subparsers) -> None:
    """Add the verb to the program's parser."""
    parser = verbs.add_parser(
        "schema",
        help="print the JSON schema of a configuration",
        description="Print the JSON schema of a configuration, for editors that complete and check keys.",
    )
    parser.add_argument(
        "--kind",
        choices=tuple(KINDS),
        default=DEFAULT_KIND,
        help=f"kind of the run (default: {DEFAULT_KIND})",
    )
    parser.set_defaults(function=run)


def run(args: argparse.Namespace) -> int:
    """Print the schema."""
    print_json(KINDS[args.kind].file.json_schema())
    return 0
