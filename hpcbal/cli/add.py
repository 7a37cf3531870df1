"""`hpcbal add` and `submit-job`: let DNNs or jobs join a run that goes on, or before its next start."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpcbal.cli.options import Subparsers, print_text


def add_parser(verbs: Subparsers) -> None:
    """Add the verb to the program's parser."""
    parser = verbs.add_parser(
        "add",
        help="let DNNs join an ensemble",
        description="Let DNNs join an ensemble, while it runs or before its next start. FILE has dnns, "
        "sweeps and defaults, as in the file of a run; all else is as in the run. The DNNs are checked "
        "first, and belong to the run from then on: later starts know them too.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="output directory of the run")
    parser.add_argument("file", type=Path, metavar="FILE", help="YAML file with dnns or sweeps")
    parser.set_defaults(function=run)


def run(args: argparse.Namespace) -> int:
    """Check the DNNs beside those of the run, and write them where the run looks."""
    import os

    from hpcbal.config import EnsembleConfig, load_of_kind
    from hpcbal.config.checks.frameworks import TITLES, framework_of
    from hpcbal.config.load import load_joining
    from hpcbal.config.submission import joining_problems, names_of, submission_yaml
    from hpcbal.errors import ConfigError, InputError
    from hpcbal.kinds import ENSEMBLE, JOBS
    from hpcbal.runtime.handoff.submissions import next_number, with_submitted, write_submission
    from hpcbal.telemetry.files.run_directory import RunDirectory
    from hpcbal.telemetry.views.kinds import kind_of
    from hpcbal.telemetry.views.read_status import import_roots_of, read_status
    from hpcbal.telemetry.views.status import death_note, has_ended
    from hpcbal.training.frameworks import needs_of, with_models_to_come

    directory, status = RunDirectory(args.directory), read_status(args.directory)
    if kind_of(status) is not ENSEMBLE:
        other = "; a job joins with hpcbal submit-job" if kind_of(status) is JOBS else ""
        raise InputError(
            f"{args.directory}: {kind_of(status).what}, allowed: the output of a run of DNNs{other}"
        )
    of_file = load_of_kind(EnsembleConfig, directory.config)
    roots = list(dict.fromkeys([str(args.file.resolve().parent), os.getcwd()]))
    is_going = not has_ended(status) and death_note(status) is None
    is_written = False
    while not is_written:  # again if somebody else adds DNNs at the same time
        number = next_number(directory)
        known = with_submitted(of_file, directory)
        joined = load_joining(args.file, known, import_roots_of(args.directory))
        problems = joining_problems(known, joined)
        loaded = needs_of(with_models_to_come(known), known.backend)
        if is_going and not known.backend.is_emulated:
            problems += [
                f"dnns.{dnn.name}: needs {TITLES[framework]}, which the ranks of this start have not loaded; "
                "stop the run first: the next start loads it"
                for dnn in joined.dnns[len(known.dnns) :]
                if (framework := framework_of(dnn, known.backend)) not in loaded
            ]
        if problems:
            raise ConfigError([f"{args.file}: {problem}" for problem in problems])
        text = submission_yaml(joined, roots, names_of(known))
        is_written = write_submission(directory, text, number)
    names = ", ".join(dnn.name for dnn in joined.dnns[len(known.dnns) :])
    when = "when its pass ends, or at its next start" if is_going else "at the run's next start"
    print_text(f"{args.directory}: added {names}, {when}")
    return 0


def add_job_parser(verbs: Subparsers) -> None:
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
    parser.set_defaults(function=submit_jobs)


def submit_jobs(args: argparse.Namespace) -> int:
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
