"""`hpcbal validate`: check a configuration, and report all that is wrong; `hpcbal schema`: its schema."""

from __future__ import annotations

import argparse
import io
import sys

from hpcbal.cli.options import (
    Subparsers,
    add_config,
    add_json,
    print_json,
    print_text,
    print_warning,
    writing_stdout,
)
from hpcbal.garbage import without_garbage_collection
from hpcbal.kinds import DEFAULT_KIND, KINDS


def add_parser(verbs: Subparsers) -> None:
    """Add the verb to the program's parser."""
    parser = verbs.add_parser(
        "validate",
        help="check a configuration",
        description="Check keys, values and import paths, and report all problems together; warn of keys "
        "that have no effect, or may not fit the number of slots, and of data that is not on this machine. "
        "Runs no user code.",
    )
    add_config(parser)
    parser.add_argument(
        "--resolved", action="store_true", help="print the configuration with every key written out"
    )
    add_json(parser)
    parser.set_defaults(function=run)


@without_garbage_collection()
def run(args: argparse.Namespace) -> int:
    """Check the file; with --json, problems and warnings go to stdout as data."""
    from hpcbal.config import load_config, resolved_yaml
    from hpcbal.errors import ConfigError, ExitCode

    warnings: list[str] = []
    warn = warnings.append if args.json else print_warning
    try:
        config = load_config(args.config, args.overrides, check_imports=True, warn=warn, beforehand=True)
    except ConfigError as error:
        if not args.json:
            raise
        shown = {"problems": list(error.problems), "more_problems": error.has_more}
        print_json({"valid": False, **shown, "warnings": warnings})
        return int(ExitCode.WRONG_INPUT)
    if args.json:
        values = config.model_dump(mode="json", by_alias=True)
        print_json({"valid": True, "problems": [], "warnings": warnings, "config": values})
    elif args.resolved:
        with writing_stdout():
            if isinstance(sys.stdout, io.TextIOWrapper):
                sys.stdout.reconfigure(encoding="utf-8")  # as YAML is
            print(resolved_yaml(config), end="")
    else:
        num_jobs, job = len(config.jobs_by_name), KINDS[config.kind].full_job
        jobs = f"{num_jobs} {job}{'' if num_jobs == 1 else 's'}"
        num_open = sum(each.num_open for each in config.searches) if config.kind == "ensemble" else 0
        later = f" and {num_open} to be proposed" if num_open else ""
        print_text(f"{args.config}: valid, {jobs}{later}, output in {config.output.dir}")
    return int(ExitCode.DONE)


def add_schema_parser(verbs: Subparsers) -> None:
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
    parser.set_defaults(function=print_schema)


def print_schema(args: argparse.Namespace) -> int:
    """Print the schema."""
    print_json(KINDS[args.kind].file.json_schema())
    return 0
