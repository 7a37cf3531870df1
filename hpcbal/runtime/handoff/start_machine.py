"""Decide what `hpcbal run` does with the ranks that it has started, and what their end means.

A state machine without IO. Its inputs are the facts of the start file, the signals, and mpirun's return code;
its outputs are actions, the exit code and sentences for the user. `minding` performs the actions.
"""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass, replace

from hpcbal.errors import ExitCode
from hpcbal.runtime.handoff.start_file import StartFacts

# mpirun returns 128 + one of these if a signal ended a rank; other codes above 128 are mpirun's own.
DEADLY = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)
ENDED_BY_TERM = (-signal.SIGTERM, 128 + signal.SIGTERM)
ENDED_BY_INT = 128 + signal.SIGINT


class Action(enum.Enum):
    """What `hpcbal run` does while mpirun runs; the values are the sentences to print."""

    REPORT_LAST_WORDS = None
    PASS_ON_STOP = "stopping cleanly: writing checkpoints (Ctrl-C again to kill)"
    KILL = "killing the ranks; the last checkpoints stay"


@dataclass(frozen=True, slots=True)
class StartEnd:
    """How a start ended.

    Attributes:
        code: exit code of `hpcbal run`.
        sentences: what still has to be reported, in order.
    """

    code: int
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StartMachine:
    """What `hpcbal run` has done so far with its ranks.

    Attributes:
        has_passed_on: it has asked the ranks to stop.
        has_killed: it has killed them at the user's request.
        has_reported: it has reported the last words of a rank.
    """

    has_passed_on: bool = False
    has_killed: bool = False
    has_reported: bool = False

    def look(self, facts: StartFacts, *, stop: bool, kill: bool) -> tuple[StartMachine, tuple[Action, ...]]:
        """Decide what to do now, while mpirun runs; returns the next state and the actions.

        Last words are reported soon, because mpirun may take long to end the ranks. A stop is forwarded
        once the ranks can handle it, but not after the run has decided its exit code.

        Args:
            facts: the facts so far.
            stop: whether a signal has asked for a stop, now or earlier.
            kill: whether Ctrl-C has asked to kill the ranks since the last call.
        """
        after, actions = self, []
        if facts.last_words is not None and not self.has_reported and not self.has_killed:
            after = replace(after, has_reported=True)
            actions.append(Action.REPORT_LAST_WORDS)
        is_due = stop and facts.is_ready and facts.exit_code is None
        if is_due and not self.has_passed_on and not self.has_killed:
            after = replace(after, has_passed_on=True)
            actions.append(Action.PASS_ON_STOP)
        if kill:
            after = replace(after, has_killed=True)
            actions.append(Action.KILL)
        return after, tuple(actions)

    def end(
        self, returncode: int, facts: StartFacts, *, stop: bool = False, are_gone: bool = True
    ) -> StartEnd:
        """Determine the exit code and the sentences to report after mpirun has ended.

        The exit code is the one that the run, or a rank that aborted the job, has recorded. The return code
        of a rank's process does not count: a model may call `os._exit(75)`.

        Args:
            returncode: mpirun's return code; if negative, the signal that ended mpirun.
            facts: the facts of this start.
            stop: whether a signal has asked `hpcbal run` for a stop.
            are_gone: whether all ranks have ended too; they may outlive an mpirun that was killed.
        """
        if is_killed(returncode) and not facts.is_ready:
            # Without their mpirun, ranks that initialise MPI find themselves alone in a world of one, and
            # report that the launcher is wrong.
            facts = replace(facts, exit_code=None, abort_code=None)
        words = facts.last_words
        if self.has_reported or self.has_killed or is_killed(returncode):  # the ranks end because mpirun did
            words = None
        is_reported = self.has_reported or words is not None
        code, sentence = self._meaning(returncode, facts, is_reported, stop, are_gone)
        return StartEnd(code, tuple(text for text in (words, sentence) if text is not None))

    def _meaning(
        self, returncode: int, facts: StartFacts, is_reported: bool, stop: bool, are_gone: bool
    ) -> tuple[int, str | None]:
        code = facts.exit_code
        if code is not None:  # decided, even if a rank crashed later while it exited
            if code == ExitCode.RUN_AGAIN and returncode and not is_reported:  # otherwise rank 0 printed it
                return (
                    code,
                    "the ranks have written checkpoints and stopped; run the same command again to resume",
                )
            return code, f"the run has ended with exit code {code}" if is_killed(returncode) else None
        code = int(ExitCode.INTERNAL_ERROR) if facts.abort_code is None else facts.abort_code
        if is_killed(returncode):
            return code, GONE_WITH_MPIRUN if are_gone else LEFT_BY_MPIRUN
        if self.has_killed:
            return code, KILLED_ON_REQUEST
        if facts.abort_code is not None or is_reported:  # the rank that aborts has reported why
            return code, None
        return self._undecided(returncode, facts, stop)

    def _undecided(self, returncode: int, facts: StartFacts, stop: bool) -> tuple[int, str]:
        """The meaning of an end that no rank has decided or explained."""
        if returncode in ENDED_BY_TERM or (returncode == ENDED_BY_INT and not facts.is_ready):
            return ExitCode.RUN_AGAIN, ENDED_BY_SIGNAL
        if returncode - 128 in DEADLY:
            return ExitCode.INTERNAL_ERROR, _death(signal.Signals(returncode - 128), facts.is_watched)
        if returncode and stop:  # the stop reached mpirun too, which kills the ranks
            return ExitCode.RUN_AGAIN, ENDED_WHILE_STOPPING
        if returncode and facts.is_stopping:
            return ExitCode.INTERNAL_ERROR, ENDED_WHILE_STOPPING
        return ExitCode.INTERNAL_ERROR, ENDED_UNDECIDED if facts.is_ready else ENDED_EARLY


KILLED_ON_REQUEST = (
    "the ranks were killed before the run had written all checkpoints; run the same command again to resume "
    "from the last ones"
)
ENDED_BY_SIGNAL = "a rank ended before it could write a checkpoint; run the same command again"
GONE_WITH_MPIRUN = (
    "the ranks have ended too, perhaps before they could write checkpoints; run the same command again to "
    "resume from the last checkpoints"
)
LEFT_BY_MPIRUN = (
    "some ranks may still be running; they stop after their current step. Check with 'hpcbal status' that "
    "the run has stopped, then run the same command again"
)
ENDED_WHILE_STOPPING = (
    "the ranks were asked to stop, but ended perhaps before they could write checkpoints (mpirun kills them "
    "if it gets a signal); run the same command again to resume from the last checkpoints"
)
ENDED_UNDECIDED = (
    "the ranks have ended, but the run has not: mpirun got a signal, or a process has ended itself, for "
    "example in a model; see the logs of the ranks, then run the same command again"
)
ENDED_EARLY = (
    "the ranks ended while they were starting: mpirun got a signal or could not start them, or one of them "
    "failed; see the messages above, if any, then run the same command again"
)


def is_killed(returncode: int) -> bool:
    """Whether mpirun itself was killed; in that case it has not ended its ranks."""
    return -returncode in DEADLY


def _death(number: signal.Signals, is_watched: bool) -> str:
    """The sentence about a death that no rank could report.

    Args:
        number: number of the signal that ended the rank.
        is_watched: whether the run had started.
    """
    when = "" if is_watched else " while the run was starting"
    advice = "Nothing was trained in this start; run the same command again"
    if is_watched:
        advice = "Run the same command again to resume from the last checkpoints"
    return (
        f"a rank was ended by {number.name}{when} (mpirun reports which): killed by kill -9 or the "
        f"out-of-memory killer (see dmesg), or crashed. {advice}"
    )
