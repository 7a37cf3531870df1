"""`hpcbal submit-job`: add jobs to a run of many parameter-server jobs."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpcbal.cli.options import Subparsers, print_text


def add_parser(verbs: Subparsers) -> None:
    """Add the verb to the program's parser."""
    parser = verbs.add_parser(
        "submit-job",
        help="add jobs to a run of many parameter-server jobs",
        description="Add jobs to a run of kind jobs, while it runs or before its next start. FILE is a file "
        "of kind jobs that has only jobs, sweeps and defaults; all else is as in the run. The jobs are "
        "checked first, and belong to the run from then on: later starts know them too.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="output directory of the run")
    parser.add_argument("file", type=Path, metavar="FILE", help="YAML file of kind jobs")
    parser.set_defaults(function=run)


def run(args: argparse.Namespace) -> int:
    """Check the jobs by themselves and beside those of the run, and write them where the run looks."""
    import os

    from hpcbal.config import JobsConfig, load_of_kind
    from hpcbal.config.submission import keys_of_run, kind_problems, submission_problems, submission_yaml
    from hpcbal.errors import ConfigError, InputError
    from hpcbal.kinds import JOBS
    from hpcbal.runtime.handoff.submissions import next_number, with_submitted, write_submission
    from hpcbal.telemetry.files.run_directory import RunDirectory
    from hpcbal.telemetry.views.kinds import kind_of
    from hpcbal.telemetry.views.read_status import read_status
    from hpcbal.telemetry.views.status import has_ended

    directory = RunDirectory(args.directory)
    status = read_status(args.directory)
    kind = kind_of(status)
    if kind is not JOBS:
        raise InputError(f"{args.directory}: {kind.what}, allowed: the output of a run of kind jobs")
    known = load_of_kind(JobsConfig, directory.config)
    if problems := kind_problems(args.file):
        raise ConfigError(problems)
    config = load_of_kind(JobsConfig, args.file, check_imports=True)
    text = submission_yaml(config, list(dict.fromkeys([str(args.file.resolve().parent), os.getcwd()])))
    is_written = False
    while not is_written:  # again if somebody else submits at the same time
        number = next_number(directory)
        found = submission_problems(with_submitted(known, directory), config.jobs)
        problems = [*keys_of_run(args.file), *(f"{args.file}: {problem}" for problem in found)]
        if problems:
            raise ConfigError(problems)
        is_written = write_submission(directory, text, number)
    when = "from the run's next start on" if has_ended(status) else "within seconds, or at its next start"
    print_text(f"{args.directory}: submitted {', '.join(job.name for job in config.jobs)}, {when}")
    return 0
