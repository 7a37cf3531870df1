"""`hpcbal schema`: the JSON schema of a configuration, for editors."""

from __future__ import annotations

import argparse

from hpcbal.cli.options import Subparsers, print_json

KINDS = ("ensemble", "paramserver", "jobs")


def add_parser(verbs: Subparsers) -> None:
    """Add the verb to the program's parser."""
    parser = verbs.add_parser(
        "schema",
        help="print the JSON schema of a configuration",
        description="Print the JSON schema of a configuration, for editors that complete and check keys.",
    )
    parser.add_argument(
        "--kind", choices=tuple(KINDS), default="ensemble", help="kind of the run (default: ensemble)"
    )
    parser.set_defaults(function=run)


def run(args: argparse.Namespace) -> int:
    """Print the schema."""
    from hpcbal.config import json_schema

    print_json(json_schema(args.kind))
    return 0
