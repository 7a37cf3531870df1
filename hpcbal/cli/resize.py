"""`hpcbal resize`: give executors to a running parameter-server job, or take some back."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpcbal.cli.options import Subparsers, print_text


def add_parser(verbs: Subparsers) -> None:
    """Add the verb to the program's parser."""
    parser = verbs.add_parser(
        "resize",
        help="change which executors a parameter-server job uses",
        description="Change which of its executors a parameter-server job uses, while it runs or before its "
        "next start. It writes the file DIR/executors, which wins over executors.schedule; "
        "'resize DIR schedule' removes it.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="output directory of the job")
    parser.add_argument(
        "executors",
        metavar="EXECUTORS",
        help="all; a number, for the first so many; ranks such as 1-4,7; or schedule",
    )
    parser.set_defaults(function=run)


def run(args: argparse.Namespace) -> int:
    """Check what is asked for, and write it where the job looks."""
    from hpcbal.cluster.roles import executors_of
    from hpcbal.errors import InputError
    from hpcbal.telemetry.files.atomic_file import output_error, write_atomic
    from hpcbal.telemetry.files.run_directory import RunDirectory
    from hpcbal.telemetry.views.kinds import kind_of
    from hpcbal.telemetry.views.read_status import read_status
    from hpcbal.telemetry.views.status import has_ended

    status = read_status(args.directory)
    known = status.get("executors")
    if not isinstance(known, list):
        raise InputError(
            f"{args.directory}: {kind_of(status).what}, allowed: the output of a parameter-server job"
        )
    path = RunDirectory(args.directory).executors
    if args.executors == "schedule":
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise output_error(path, error, "remove") from error
        print_text(f"{args.directory}: the job follows executors.schedule")
        return 0
    ranks = [executor["rank"] for executor in known]
    if len(ranks) < 2:
        raise InputError(f"{args.directory}: the job has not started yet; use executors.start in its file")
    chosen = executors_of(args.executors, ranks)
    write_atomic(path, f"{args.executors.strip()}\n")
    when = "from its next start on" if has_ended(status) else "within seconds"
    print_text(f"{args.directory}: {len(chosen)} of {len(ranks)} executors, {when}")
    return 0
