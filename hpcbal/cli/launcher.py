"""`hpcbal launcher`: the launcher's part of the command line, for job scripts."""

from __future__ import annotations

import argparse
import os

from hpcbal.cli.options import Subparsers, writing_stdout


def add_parser(verbs: Subparsers) -> None:
    """Add the verb to the program's parser."""
    parser = verbs.add_parser(
        "launcher",
        help="print how to start the ranks in this Slurm job",
        description="Print the line that starts the ranks in this Slurm job, for job scripts: "
        "$(hpcbal launcher) hpcbal run CONFIG. 'hpcbal plan' prints the same line before the job is queued.",
    )
    parser.add_argument("kind", nargs="?", choices=("srun", "mpirun"), default="srun", help="default: srun")
    parser.set_defaults(function=run)


def run(args: argparse.Namespace) -> int:
    """Print the line."""
    from hpcbal.cluster.launch_line import ranks_of_slurm_job

    ranks = ranks_of_slurm_job(os.environ)
    with writing_stdout():
        print(" ".join(ranks.srun() if args.kind == "srun" else ranks.mpirun()))
    return 0
