"""`hpcbal status`: show how a run is doing, from its files, and how its batch job is, if it has one."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcbal.cli.options import Subparsers, add_json, print_json, print_text, writing_stdout
from hpcbal.errors import InputError
from hpcbal.safe_text import printable

if TYPE_CHECKING:
    from hpcbal.cli.submitting.queue import JobInQueue
    from hpcbal.telemetry.files.run_directory import RunDirectory
    from hpcbal.telemetry.views.kinds import AnyStatus

REFRESH_S = 2.0
STARTING_S = 60.0
"""For so long, `--watch` waits for the first status of a run that holds its directory."""

_CLEAR = "\x1b[H\x1b[2J"


def add_parser(verbs: Subparsers) -> None:
    """Add the verb to the program's parser."""
    parser = verbs.add_parser(
        "status",
        help="show how a run is doing",
        description="Show how a run is doing, from status.json in its output directory; also works over ssh "
        "and after the run. If 'hpcbal submit' has made its batch job, the state of that follows.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="output directory of a run")
    parser.add_argument("--watch", action="store_true", help="show it again every 2 s until the run ends")
    add_json(parser)
    parser.set_defaults(function=run)


def run(args: argparse.Namespace) -> int:
    """Show the status once, or until the run ends; --json --watch prints one line of JSON per update."""
    from hpcbal.telemetry.files.run_directory import RunDirectory

    redraw = args.watch and not args.json and sys.stdout.isatty()
    files = RunDirectory(args.directory)
    until_s = time.monotonic() + STARTING_S
    while args.watch and files.lock.exists() and not files.status.exists() and time.monotonic() < until_s:
        time.sleep(REFRESH_S)  # a run holds the directory, and is about to write its status
    ask = _queue(files)
    while True:
        now, jobs = time.time(), ask()
        try:
            status = _status(files, jobs)
        except InputError as error:  # a damaged file; the batch job is there all the same
            _show_jobs(jobs, now, error, as_json=args.json)
            raise
        if args.json:
            print_json(_values(status, jobs), indent=None if args.watch else 2)
        else:
            with writing_stdout():
                print((_CLEAR if redraw else "") + _text(args.directory, status, jobs, now))
        if not args.watch or _is_over(status, jobs, now):
            return 0
        if not args.json and not redraw:
            print(flush=True)
        time.sleep(REFRESH_S)


def _show_jobs(jobs: Sequence[JobInQueue], now: float, problem: InputError, *, as_json: bool) -> None:
    """Show the batch jobs, if there are any, of a run whose status cannot be read."""
    if not jobs:
        return
    from hpcbal.cli.submitting.queue import line_of, values_of

    if as_json:
        print_json({"problem": str(problem), "batch_jobs": [values_of(job) for job in jobs]})
    else:
        print_text(printable("\n".join(line_of(job, now) for job in jobs)))


def _queue(files: RunDirectory) -> Callable[[], list[JobInQueue]]:
    """Return a function that returns the run's batch jobs in their queue; runs without any ask nobody."""
    if not files.batch_jobs.exists():
        return list
    from hpcbal.cli.submitting.queue import QueueWatch

    return QueueWatch(files.root).jobs


def _status(files: RunDirectory, jobs: Sequence[JobInQueue]) -> AnyStatus | None:
    """Return the status; None if there is a batch job and it has not begun."""
    from hpcbal.telemetry.views.read_status import read_status

    return None if jobs and not files.status.exists() else read_status(files.root)


def _values(status: AnyStatus | None, jobs: Sequence[JobInQueue]) -> dict[str, Any]:
    if not jobs:
        return dict(status or {})
    from hpcbal.cli.submitting.queue import values_of

    return {**(status or {"phase": "submitted"}), "batch_jobs": [values_of(job) for job in jobs]}


def _text(directory: Path, status: AnyStatus | None, jobs: Sequence[JobInQueue], now: float) -> str:
    from hpcbal.cluster.systems.job import Phase
    from hpcbal.telemetry.views.read_status import render_status

    comes_back = {job.phase for job in jobs if job.is_live} == {Phase.PENDING}
    text = (
        f"{directory}: has not begun" if status is None else render_status(status, now, comes_back=comes_back)
    )
    if status is not None and (line := _joins_later(directory, status)):
        text = f"{text.rstrip()}\n\n{line}"
    if jobs:
        from hpcbal.cli.submitting.queue import line_of

        logs = [f"log: {job.record.log}" for job in jobs if status is None and job.phase is Phase.ENDED]
        text = "\n".join((text.rstrip("\n"), "", *(line_of(job, now) for job in jobs), *logs))
    return printable(text.rstrip("\n"))


def _joins_later(directory: Path, status: AnyStatus) -> str:
    """Return a line about what has joined since the last start ended, and is not in its status; else ''."""
    from hpcbal.telemetry.files.run_directory import RunDirectory
    from hpcbal.telemetry.views.status import death_note, has_ended

    files = RunDirectory(directory)
    if not files.submissions.is_dir() or not (has_ended(status) or death_note(status) is not None):
        return ""
    from hpcbal.config.listed import DNNS, JOBS
    from hpcbal.errors import ConfigError, OutputError
    from hpcbal.runtime.handoff.submissions import submissions_of

    content: dict[str, Any] = {**status}
    listed = DNNS if DNNS.key in content else JOBS
    try:
        items = [item for each in submissions_of(files, listed) for item in each.items]
    except (ConfigError, OutputError) as error:  # the next start refuses it, too
        return str(error)
    known = {each["name"] for each in content[listed.key]}
    names = [item.name for item in items if item.name not in known]
    return f"to join at the next start: {', '.join(names)}" if names else ""


def _is_over(status: AnyStatus | None, jobs: Sequence[JobInQueue], now: float) -> bool:
    """Whether nothing more will happen: the run has ended, and no batch job continues it, or may do so."""
    from hpcbal.telemetry.views.status import death_note, has_ended

    is_live = any(
        job.is_live or (job.may_be_live and job.can_be_asked_for and not job.record.is_over) for job in jobs
    )
    if status is None:
        return not is_live
    if status["phase"] == "finished":
        return True
    return (has_ended(status) or death_note(status, now) is not None) and not is_live
