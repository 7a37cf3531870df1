"""`hpcbal doctor`: check what a run needs, on this machine or on all nodes of a job."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbal.cli.options import Subparsers, add_json, print_json, print_text
from hpcbal.errors import ExitCode

if TYPE_CHECKING:
    from hpcbal.doctor import Finding

OF_RANKS = "--of-ranks"
"""Hidden: only what ranks do together, for the two ranks that a doctor without a launcher starts."""


def add_parser(verbs: Subparsers) -> None:
    """Add the verb to the program's parser."""
    parser = verbs.add_parser(
        "doctor",
        help="check MPI, memory, libraries, devices and files",
        description="Check what a run needs: MPI and its threads, shared memory, TensorFlow and PyTorch, "
        "devices, collectives, the file system of the output, clocks. Each line is ok, warning or error, "
        "with what to do; exit code 1 if there is an error. Alone it checks this machine, and starts two "
        "ranks with mpirun; under mpirun or srun it checks all nodes.",
    )
    parser.add_argument(
        "--output", type=Path, default=Path(), metavar="DIR", help="the run's directory (default: this one)"
    )
    add_json(parser)
    parser.add_argument(OF_RANKS, action="store_true", help=argparse.SUPPRESS)
    parser.set_defaults(function=run)


def run(args: argparse.Namespace) -> int:
    """Check all nodes as a rank, or this machine."""
    from hpcbal.cluster.started import detect_launcher

    launcher = detect_launcher(os.environ)
    if launcher is None:
        return _on_this_machine(args)
    from hpcbal.runtime.doctor import check_as_rank

    def show(findings: Sequence[Finding], num_ranks: int, hosts: Sequence[str]) -> int:
        return _show(findings, num_ranks, hosts, as_json=args.json)

    return check_as_rank(launcher, args.output, show, only_ranks=args.of_ranks)


def _on_this_machine(args: argparse.Namespace) -> int:
    import socket

    from hpcbal.doctor import local
    from hpcbal.doctor.child import asking
    from hpcbal.runtime.doctor import ask_two_ranks

    with asking(2) as pool:
        ranks = pool.submit(ask_two_ranks, ["doctor", "--json", OF_RANKS, "--output", str(args.output)])
        node = pool.submit(local.of_node, args.output, imports=True)
        found = [local.here(), *ranks.result(), *node.result(), *local.alone()]
    return _show(found, 1, [socket.gethostname()], as_json=args.json)


def _show(findings: Sequence[Finding], num_ranks: int, hosts: Sequence[str], *, as_json: bool) -> int:
    from hpcbal.doctor import ERROR, merged, text_of
    from hpcbal.doctor.checks import facts_as_json

    found = merged(findings)
    if as_json:
        print_json(facts_as_json(found, num_ranks, hosts))
    else:
        print_text(text_of(found, len(hosts)))
    sys.stdout.flush()
    has_error = any(finding.level == ERROR for finding in found)
    return int(ExitCode.INTERNAL_ERROR if has_error else ExitCode.DONE)
