"""`hpcbal submit`: from a configuration to a batch job, in one command."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from hpcbal.cli.options import (
    Subparsers,
    add_config,
    add_json,
    add_output,
    nodes,
    positive,
    print_answer,
    print_text,
    share,
)


def add_parser(verbs: Subparsers) -> None:
    """Add the verb to the program's parser."""
    parser = verbs.add_parser(
        "submit",
        help="submit a run to the batch system",
        usage="hpcbal submit CONFIG [OPTION...] [-- OPTION OF THE SITE...]",
        description="Write the script of a batch job for this run, and submit it to Slurm, PBS, LSF or Flux. "
        "What follows a lone -- are further options of the job, as the site's submit command takes them.",
    )
    add_config(parser, may_lack=True)
    add_output(parser)
    parser.add_argument(
        "--system",
        metavar="NAME",
        help="auto (default), or the batch system: slurm, pbs, lsf or flux",
    )
    parser.add_argument(
        "--nodes",
        type=nodes,
        default=1,
        metavar="N|auto",
        help="nodes (default: 1); auto: as many as keep the slots as busy as --use says",
    )
    parser.add_argument("--use", type=share, metavar="SHARE", help="for --nodes auto, such as 0.8")
    parser.add_argument(
        "--time",
        type=_time_s,
        metavar="auto|H:MM",
        help="time limit; auto: the upper end of the predicted time, with a checkpoint (default: walltime of "
        "the configuration, else auto)",
    )
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="rates for the prediction, as for 'hpcbal plan'"
    )
    data = parser.add_mutually_exclusive_group()
    data.add_argument(
        "--samples", type=positive, metavar="N", help="samples of the dataset, for the prediction"
    )
    data.add_argument(
        "--open-data", action="store_true", help="open the dataset to find its size; runs its code"
    )
    parser.add_argument(
        "--after",
        type=_job_id,
        action="append",
        default=[],
        metavar="ID",
        help="start once this job has ended; may be repeated",
    )
    parser.add_argument(
        "--until-done",
        type=positive,
        default=0,
        metavar="N",
        help="come back at most N times, until the run is done (default: stop at the time limit)",
    )
    array = parser.add_mutually_exclusive_group()
    array.add_argument(
        "--array", metavar="seeds=0-9", help="one run for each seed, in DIR/seed-N; compared at the end"
    )
    array.add_argument(
        "--array-of",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="one run for each configuration, instead of CONFIG; compared at the end",
    )
    parser.add_argument(
        "--write-site",
        action="store_true",
        help="write a first site file with what is found here, and do nothing else",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the script, and submit nothing")
    add_json(parser)
    parser.set_defaults(function=run)


def split(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Cut a command line of this verb at a lone `--`: argparse would mix what follows with CONFIG."""
    if "--" not in arguments or arguments[0] != "submit":
        return arguments, ()
    cut = arguments.index("--")
    return arguments[:cut], arguments[cut + 1 :]


def run(args: argparse.Namespace) -> int:
    """Submit the run, and say what was asked for, why, and where to look; or write a site file."""
    if args.write_site:
        return _write_site(args)
    from hpcbal.cli.submitting.submitting import answer

    return print_answer(answer(args), as_json=args.json)


def _write_site(args: argparse.Namespace) -> int:
    import os

    from hpcbal.cli.submitting.preparing import system_of
    from hpcbal.cluster.systems.commands import try_command
    from hpcbal.config.site import load_site, write_site

    path = write_site(system_of(args.system or "auto"), os.environ, try_command)
    found = load_site()
    asked = ("partition", "cores_per_node", "gpus_per_node")
    missing = [name for name in asked if getattr(found, name) in ("", None)]
    not_told = f"; the batch system did not tell {', '.join(missing)}" if missing else ""
    print_text(f"{path}: written; read it, and complete account, modules and options{not_told}")
    return 0


def _job_id(text: str) -> str:
    if not re.fullmatch(r"[^\W_][\w.@\[\]-]*", text):
        raise argparse.ArgumentTypeError(
            f"got {text!r}, allowed: the identifier of a job, as 'hpcbal submit' or the batch system shows it"
        )
    return text


def _time_s(text: str) -> int | str:
    """Argument type: hours and minutes, in seconds; or `auto`."""
    if text == "auto":
        return text
    hours, colon, minutes = text.partition(":")
    known = colon and hours.isdecimal() and minutes.isdecimal() and len(minutes) == 2 and int(minutes) < 60
    found = 3600 * int(hours) + 60 * int(minutes) if known and len(hours) < 6 else 0
    if not found:
        raise argparse.ArgumentTypeError(
            f"got {text!r}, allowed: auto, or hours and minutes such as 4:00 or 0:30, more than 0:00"
        )
    return found
