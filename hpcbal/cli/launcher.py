"""`hpcbal launcher`: the launcher's part of the command line, for job scripts."""

from __future__ import annotations

import argparse
import os
from contextlib import suppress
from pathlib import Path

from hpcbal import env
from hpcbal.cli.options import Subparsers, print_text, writing_stdout


def add_parser(verbs: Subparsers) -> None:
    """Add the verb to the program's parser."""
    parser = verbs.add_parser(
        "launcher",
        help="print how to start the ranks in this Slurm job",
        description="Print the line that starts the ranks in this Slurm job, for job scripts: "
        "$(hpcbal launcher) hpcbal run CONFIG. 'hpcbal plan' prints the same line before the job is queued.",
    )
    parser.add_argument("kind", nargs="?", choices=("srun", "mpirun"), default="srun", help="default: srun")
    parser.add_argument(
        "--ended",
        type=int,
        metavar="STATUS",
        help="for job scripts whose launcher has ended with STATUS: print the exit code of the job, and 1 "
        "behind it if something was lost and the same command may continue, otherwise 0",
    )
    parser.set_defaults(function=run)


def run(args: argparse.Namespace) -> int:
    """Print the line, or how the job has ended."""
    if args.ended is not None:
        return _show_end(args.ended)
    from hpcbal.cluster.launch_line import ranks_of_slurm_job

    ranks = ranks_of_slurm_job(os.environ)
    with writing_stdout():
        print(" ".join(ranks.srun() if args.kind == "srun" else ranks.mpirun()))
    return 0


def _show_end(status: int) -> int:
    from hpcbal.exit_codes import end_of_job
    from hpcbal.processes import say

    noted, file = "", env.read("HPCBAL_END_FILE")
    if file is not None:
        with suppress(OSError):
            noted = Path(file).read_text(encoding="utf-8", errors="replace")
    end = end_of_job(noted, status)
    if end.sentence:
        say(end.sentence)
    print_text(f"{int(end.code)} {int(end.is_lost)}")
    return 0
