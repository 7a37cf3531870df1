"""Parse the command line, call the verb, and turn errors into a message and an exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from hpcbal import __version__
from hpcbal.cli import (
    add,
    cancel,
    doctor,
    evaluate,
    export,
    forecast,
    launcher,
    plan,
    report,
    resize,
    run,
    simulate,
    status,
    stop,
    submit,
    validate,
    watch,
)
from hpcbal.cli.options import drop_stdout, writing_stdout
from hpcbal.errors import INTERRUPTED, ConfigError, ExitCode, HpcbalError, InputError, refusing_paths
from hpcbal.processes import say

_VERBS = (
    run.add_parser,
    validate.add_parser,
    plan.add_parser,
    simulate.add_parser,
    forecast.add_parser,
    run.add_profile_parser,
    submit.add_parser,
    status.add_parser,
    watch.add_parser,
    cancel.add_parser,
    add.add_parser,
    stop.add_parser,
    resize.add_parser,
    add.add_job_parser,
    report.add_parser,
    report.add_compare_parser,
    evaluate.add_parser,
    export.add_parser,
    export.add_tracking_parser,
    validate.add_schema_parser,
    doctor.add_parser,
    launcher.add_parser,
)
_EPILOG = """\
exit codes: 0 done, 1 internal error, 2 wrong input, 3 finished but some DNNs or jobs failed,
            70 stalled, 75 stopped cleanly: run the same command again to continue,
            130 interrupted by Ctrl-C in a verb that does not train

first steps: hpcbal validate configs/quickstart.yaml
             hpcbal run configs/quickstart.yaml
"""


class _RaisingParser(argparse.ArgumentParser):
    """Raises an error for wrong arguments, instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message)


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line that Python code has made.

    Raises:
        InputError: if an argument is wrong.
    """
    return build_parser(_RaisingParser).parse_args(arguments)


def build_parser(
    parser_class: type[argparse.ArgumentParser] = argparse.ArgumentParser,
) -> argparse.ArgumentParser:
    """Build the parser of the whole program."""
    parser = parser_class(
        prog="hpcbal",
        description="Train many neural networks at once on one HPC allocation.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hpcbal {__version__}")
    verbs = parser.add_subparsers(title="verbs", dest="verb", metavar="VERB", required=True)
    for add_verb in _VERBS:
        add_verb(verbs)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run hpcbal.

    Args:
        argv: arguments after the program's name; None: the arguments of this process.

    Returns:
        The exit code; messages for the user go to stderr. Unexpected exceptions pass through, with their
        traceback and code 1.

    Raises:
        SystemExit: from argparse, for `--help` and `--version` (0) and for wrong arguments (2).
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    ours, site_options = submit.split(arguments)
    args = build_parser().parse_args(ours)
    args.argv, args.site_options = arguments, site_options
    try:
        with refusing_paths():
            code = int(args.function(args))
        with writing_stdout():
            return code
    except HpcbalError as error:
        _report(error)
        return int(error.exit_code)
    except BrokenPipeError:
        drop_stdout()  # the reader (`| head`) has enough
        return int(ExitCode.DONE)
    except KeyboardInterrupt:
        say("hpcbal: interrupted")
        return INTERRUPTED


def _report(error: HpcbalError) -> None:
    if not isinstance(error, ConfigError):
        say(f"hpcbal: {error}")
        return
    say(str(error))
    if error.has_more:
        shown = len(error.problems)
        say(f"hpcbal: more than {shown} problems in the configuration; the first {shown} are shown")
    elif len(error.problems) > 1:
        say(f"hpcbal: {len(error.problems)} problems in the configuration")
