"""`hpcbal stop`: end DNNs of an ensemble that runs, or before its next start."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpcbal.cli.options import Subparsers, print_text


def add_parser(verbs: Subparsers) -> None:
    """Add the verb to the program's parser."""
    parser = verbs.add_parser(
        "stop",
        help="end DNNs of an ensemble, for good",
        description="End DNNs of an ensemble, for good, while it runs or before its next start. One that "
        "trains leaves after its epoch, one that waits leaves at once. Their weights stay, and the others "
        "get their slots. To stop the whole run, send it a signal, or use 'hpcbal cancel'.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="output directory of the run")
    parser.add_argument("names", nargs="+", metavar="NAME", help="names of DNNs")
    parser.set_defaults(function=run)


def run(args: argparse.Namespace) -> int:
    """Check the names, and write them where the run looks."""
    from hpcbal.config.listed import DNNS
    from hpcbal.config.source.meant import did_you_mean
    from hpcbal.control.states import TERMINAL
    from hpcbal.errors import InputError
    from hpcbal.kinds import ENSEMBLE
    from hpcbal.runtime.handoff.submissions import StopRequests, ask_to_stop, submissions_of
    from hpcbal.telemetry.files.run_directory import RunDirectory
    from hpcbal.telemetry.views.kinds import jobs_of, kind_of
    from hpcbal.telemetry.views.read_status import read_status
    from hpcbal.telemetry.views.status import death_note, has_ended

    status, directory = read_status(args.directory), RunDirectory(args.directory)
    if kind_of(status) is not ENSEMBLE:
        raise InputError(f"{args.directory}: {kind_of(status).what}, allowed: the output of a run of DNNs")
    added = [dnn.name for each in submissions_of(directory, DNNS) for dnn in each.items]
    states = dict.fromkeys(added, "added") | {dnn["name"]: dnn["state"] for dnn in jobs_of(status)}
    going_on = [name for name, state in states.items() if state not in TERMINAL]
    for name in args.names:
        if name not in states:
            hint = did_you_mean(name, states)
            raise InputError(
                f"{args.directory}: the run has no DNN {name!r}{hint}, allowed: {_some(going_on)}; nothing "
                "was stopped"
            )
        if states[name] in TERMINAL:
            raise InputError(
                f"{args.directory}: {name} is {states[name]} already, allowed: DNNs that are not over "
                f"({_some(going_on)}); nothing was stopped"
            )
    asked = StopRequests(directory).take()
    names = list(dict.fromkeys(args.names))
    if new := [name for name in names if name not in asked]:
        ask_to_stop(directory, new)
    is_going = not has_ended(status) and death_note(status) is None
    when = "after its epoch, or at once where it waits" if is_going else "at the run's next start"
    for name in names:
        print_text(f"{name}: asked to stop{'' if name in new else ' before'}, {when}")
    return 0


_MOST_NAMES = 8


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return (", ".join(names[:_MOST_NAMES]) or "none, all are over") + more
