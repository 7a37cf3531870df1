"""How a batch job has ended, and whether it comes back: what its job script does at the end of a start.

The script keeps the story of a job in one file: each start appends the line `start`, and its ranks append
what they know (`runtime.handoff.end_file`).
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from hpcbal.errors import ExitCode

CLOCKS_S = 60.0
"""Clocks of machines may differ by that."""

START = "start"
"""A start of the job begins: its script has written this line."""

UNDECIDED = "undecided"
"""All ranks catch signals."""

PROGRESS = "progress"
"""This start has got further than those before: a new checkpoint, or a measured rate."""

LOST = "lost: "
"""Begins the line that says which rank was lost."""

NODES, SEEN = "nodes: ", "seen: "
"""Begin the line with the hosts of all nodes, and one for each host on which a rank has seen another die."""

LOG = "log: "
"""Begins the line with the length of the job's log, in bytes, before the start that follows."""

_LOST_NODE = re.compile(r"Remote daemon *: .* on node (\S+)|srun: error: Node failure on (\S+)")
"""How Open MPI and Slurm name a node that was lost."""


def ends_job(line: str) -> bool:
    """Whether a line says how the start has ended; the first one that does counts.

    A rank that is lost, or that ends the job, takes others with it, which may be noted later.
    """
    return line.isdecimal() or line.startswith(LOST)


def is_of_another_job(written_s: float, submitted_s: float | None) -> bool:
    """Return whether a story is that of an earlier job: numbers recur.

    Args:
        written_s: when somebody wrote into it last, in seconds of the Unix epoch.
        submitted_s: when this job was submitted; None: not known, or the job script makes a new file itself.
    """
    return submitted_s is not None and written_s < submitted_s - CLOCKS_S


def starts_of(story: str) -> list[list[str]]:
    """Return the lines of each start, the oldest first; a file without the line `start` has one start."""
    starts: list[list[str]] = []
    for line in story.splitlines():
        if line == START:
            starts.append([])
        elif starts:
            starts[-1].append(line)
        else:
            starts.append([line])
    return starts or [[]]


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a start of a batch job has ended.

    Attributes:
        code: its exit code.
        is_lost: whether a node, a rank or the launcher was lost; the same command may continue.
        sentence: what the user should know; empty if the run has said it.
    """

    code: int
    is_lost: bool = False
    sentence: str = ""


def log_before(story: str) -> int:
    """Return how long the job's log was before the last start, in bytes; 0: not known."""
    lengths = [line.removeprefix(LOG) for line in story.splitlines() if line.startswith(LOG)]
    return int(lengths[-1]) if lengths and lengths[-1].isdecimal() else 0


def lost_node(noted: Sequence[str], log: str) -> str:
    """Return a sentence about the node that was lost; empty if nothing is known, or there is one node only.

    Args:
        noted: the lines of the start.
        log: what the job's log has of it.
    """
    named = list(dict.fromkeys(first or second for first, second in _LOST_NODE.findall(log)))
    if named:
        return f"node {', '.join(named)} was lost, as the launcher says above"
    nodes = [host for line in noted if line.startswith(NODES) for host in line.removeprefix(NODES).split()]
    seen = {line.removeprefix(SEEN) for line in noted if line.startswith(SEEN)}
    silent = [host for host in nodes if host not in seen]
    if seen and silent:
        return f"perhaps node {', '.join(silent)} was lost: no rank there has noted this end"
    return ""


def end_of_start(noted: Sequence[str], status: int, log: str = "") -> JobEnd:
    """Return how a start has ended, by what rank 0 has noted; it outweighs the code of the launcher.

    mpirun also ends with 0 when it has lost a node, and with the code of a process that a model has ended.

    Args:
        noted: the lines of the start.
        status: code of the launcher.
        log: what the job's log has of the start.
    """
    end = next(filter(ends_job, noted), "")
    if end.isdecimal():
        return JobEnd(int(end))
    node = lost_node(noted, log)
    if end:
        reason = end.removeprefix(LOST)
        sentence = f"{reason}; {node}" if node else reason
        return JobEnd(ExitCode.INTERNAL_ERROR, is_lost=True, sentence=sentence)
    if noted and status == ExitCode.RUN_AGAIN:
        return JobEnd(
            ExitCode.INTERNAL_ERROR,
            sentence="a process has ended itself with code 75, for example in a model; the run has not "
            "stopped cleanly",
        )
    is_own = status in (ExitCode.INTERNAL_ERROR, ExitCode.WRONG_INPUT, ExitCode.FAILED_DNNS, ExitCode.STALLED)
    by_signal = 128 < status <= 128 + signal.SIGRTMAX
    if status == 0 or by_signal or (noted and not is_own):
        return JobEnd(
            ExitCode.INTERNAL_ERROR,
            is_lost=by_signal or bool(noted),
            sentence=f"the launcher has ended with {status}, but the run has recorded no end: "
            + (node or f"a node{_of_nodes(noted)}, a rank or the launcher was lost; see its messages above"),
        )
    return JobEnd(status)


def _of_nodes(noted: Sequence[str]) -> str:
    """The nodes of a start, for a sentence; empty if they are not known."""
    nodes = [line.removeprefix(NODES) for line in noted if line.startswith(NODES)]
    return f" (of {', '.join(nodes[0].split())})" if nodes else ""


@dataclass(frozen=True, slots=True)
class Next:
    """The step after a start of a batch job.

    Attributes:
        code: the exit code of the job if it ends here.
        comes_back: whether the job is to be started again.
        sentences: what the user should know, in the order of reading.
    """

    code: int
    comes_back: bool
    sentences: tuple[str, ...] = ()


def what_follows(
    story: str,
    status: int,
    most_restarts: int | None = None,
    *,
    num_restarts: int = 0,
    is_cancelled: bool = False,
    log: str = "",
) -> Next:
    """Decide whether a job comes back after a start.

    It does after a clean stop before the end (75), and where a node, a rank or the launcher was lost; not
    after `hpcbal cancel`, not more than `most_restarts` times, and not if this start and the one before have
    got no further. Starts that a lost node has ended count as any other.

    Args:
        story: the content of the job's end file.
        status: code of the launcher.
        most_restarts: how often the job may be started again, >= 0; None: as often as it takes.
        num_restarts: how often the batch system says that it was; the story may be new.
        is_cancelled: whether `hpcbal cancel` has asked the job to stop.
        log: what the job's log has of this start, from `log_before` on.
    """
    starts = starts_of(story)
    end = end_of_start(starts[-1], status, log)
    said = (end.sentence,) if end.sentence else ()
    if end.code != ExitCode.RUN_AGAIN and not end.is_lost:
        return Next(end.code, False, said)
    reason = _reason_to_end(starts, max(num_restarts + 1, len(starts)), most_restarts, is_cancelled)
    return Next(end.code, not reason, (*said, reason) if reason else said)


def reason_not_to_start(story: str, most_restarts: int | None = None, *, is_cancelled: bool = False) -> str:
    """Return why a job must not start again that its batch system has started; empty if it may.

    A batch system repeats a job whose node it has lost, and asks no script; and a job may have been on its
    way back when it was cancelled.

    Args:
        story: the content of the job's end file before this start; empty at the first one.
        most_restarts: as for `what_follows`.
        is_cancelled: as for `what_follows`.
    """
    starts = starts_of(story) if story else []
    return _reason_to_end(starts, len(starts), most_restarts, is_cancelled)


def _reason_to_end(
    starts: Sequence[Sequence[str]], next_restart: int, most_restarts: int | None, is_cancelled: bool
) -> str:
    if is_cancelled:
        return "cancelled by hpcbal cancel; 'hpcbal submit' continues the run"
    if len(starts) > 1 and all(PROGRESS not in lines for lines in starts[-2:]):
        return (
            "two starts in a row have got no further (no new checkpoint, no measured rate): the job ends "
            "here; see the reasons above; if it was stopped too soon, give it more time, or its signal a "
            "shorter lead; submit it again to continue"
        )
    if most_restarts is not None and next_restart > most_restarts:
        if not most_restarts:
            return (
                "the job may not be started again (no --until-done, or MAX_RESTARTS=0), and ends here; "
                "submit it again to continue"
            )
        return (
            f"the job was started again {next_restart - 1} times, {most_restarts} are allowed, and ends "
            "here; submit it again to continue"
        )
    return ""
