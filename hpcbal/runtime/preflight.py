"""The doctor's quick checks at the start of a run, on all nodes: `preflight: true`."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from pathlib import Path

from mpi4py import MPI

from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.comm.collectives import all_or_none, patient_gather
from hpcbal.doctor import ERROR, WARNING, Finding, local, merged
from hpcbal.doctor.ranks import of_ranks
from hpcbal.errors import ClusterError
from hpcbal.processes import say

log = logging.getLogger(__name__)


def preflight(
    world: MPI.Intracomm,
    node: MPI.Intracomm,
    output: Path,
    note: Callable[[str], None],
) -> None:
    """Make the quick checks of a run's start, on all nodes; collective. The first rank prints the warnings.

    Each check of a node has a time limit; a rank that hangs in MPI is one that `stall_timeout_s` ends.

    Args:
        node: the ranks of this node.
        output: the run's directory.
        note: is told what this rank does.

    Raises:
        ReportedError: on all ranks, if a check has found an error.
    """
    found: list[Finding] = []
    if node.rank == 0:
        note("preflight: the checks of a node")
        host = socket.gethostname()
        found += [finding.on(host) for finding in local.of_node(output, imports=False)]
    found += of_ranks(world, node, output, None, lambda what: note(f"preflight: {what}"))
    everything = patient_gather(world, found)
    findings = [finding for some in everything or () for finding in some]
    all_or_none(world, lambda: judge(findings) if world.rank == SCHEDULER_RANK else None)


def judge(found: list[Finding]) -> None:
    """Print the warnings, and refuse the run if there is an error.

    Args:
        found: by all ranks.

    Raises:
        ClusterError: if a check has found an error.
    """
    findings = merged(found)
    for finding in findings:
        log.debug("preflight: %s: %s", finding.level, finding.sentence())
        if finding.level == WARNING:
            say(f"warning: preflight: {finding.sentence()}")
    errors = [finding.sentence() for finding in findings if finding.level == ERROR]
    if errors:
        raise ClusterError(f"preflight: {'; '.join(errors)}; 'hpcbal doctor' shows all checks")
    log.info("preflight: no errors in %s", ", ".join(dict.fromkeys(finding.check for finding in findings)))
