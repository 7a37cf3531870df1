"""Decide what `hpcbal run` does about the ranks that it has started, and what their end means.

A state machine without IO. In go the facts of the start file, the signals that came and what mpirun returned;
out come actions, the exit code and sentences for the user. `minding` performs it.
"""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass, replace

from hpcbal.errors import ExitCode
from hpcbal.runtime.handoff.start_file import StartFacts

# mpirun returns 128 + one of these if a signal ended a rank; other codes above 128 are of its own.
DEADLY = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)
ENDED_BY_TERM = (-signal.SIGTERM, 128 + signal.SIGTERM)


class Action(enum.Enum):
    """What `hpcbal run` does while mpirun runs; `KILL` and `PASS_ON_STOP` have sentences of their own."""

    REPORT_LAST_WORDS = None
    PASS_ON_STOP = "stopping cleanly: writing checkpoints (Ctrl-C again to kill)"
    KILL = "killing the ranks; the last checkpoints stay"


@dataclass(frozen=True, slots=True)
class StartEnd:
    """How a start ended.

    Attributes:
        code: exit code of `hpcbal run`.
        sentences: what nobody else has reported, in this order.
    """

    code: int
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StartMachine:
    """What `hpcbal run` has done so far about its ranks.

    Attributes:
        has_passed_on: it has asked the ranks to stop.
        has_killed: it has killed them, because people asked for it.
        has_reported: it has reported why they end, as one of them has left it.
    """

    has_passed_on: bool = False
    has_killed: bool = False
    has_reported: bool = False

    def look(self, facts: StartFacts, *, stop: bool, kill: bool) -> tuple[StartMachine, tuple[Action, ...]]:
        """What to do now, while mpirun runs, and the state after it.

        Last words are reported at once, because mpirun may need long to end the ranks. A stop is passed on
        when the ranks can answer it, and not once the run is over.

        Args:
            facts: stated so far.
            stop: a signal has asked for a stop, now or earlier.
            kill: Ctrl-C has asked to kill since the last look.
        """
        after, actions = self, []
        if facts.last_words is not None and not self.has_reported and not self.has_killed:
            after = replace(after, has_reported=True)
            actions.append(Action.REPORT_LAST_WORDS)
        if stop and not self.has_passed_on and facts.is_ready and facts.exit_code is None:
            after = replace(after, has_passed_on=True)
            actions.append(Action.PASS_ON_STOP)
        if kill:
            after = replace(after, has_killed=True)
            actions.append(Action.KILL)
        return after, tuple(actions)

    def end(self, returncode: int, facts: StartFacts, *, are_gone: bool = True) -> StartEnd:
        """What it means that mpirun has ended.

        The run decides its exit code, or a rank that aborts the job does. What a rank's process returned is
        neither: a model may call `os._exit(75)`.

        Args:
            returncode: of mpirun; negative: the signal that ended it.
            facts: stated in this start.
            are_gone: all ranks have ended too; they may outlive an mpirun that was killed.
        """
        words = facts.last_words
        if self.has_reported or self.has_killed or is_killed(returncode):  # the ranks end because mpirun did
            words = None
        is_reported = self.has_reported or words is not None
        code, sentence = self._meaning(returncode, facts, is_reported, are_gone)
        return StartEnd(code, tuple(text for text in (words, sentence) if text is not None))

    def _meaning(
        self, returncode: int, facts: StartFacts, is_reported: bool, are_gone: bool
    ) -> tuple[int, str | None]:
        is_silent = is_reported or self.has_killed
        code = facts.exit_code
        if code is not None:  # decided, whatever happened to a rank on its way out
            if code == ExitCode.RUN_AGAIN and returncode and not is_reported:  # else rank 0 was heard
                return (
                    code,
                    "the ranks have written checkpoints and stopped; start the same command again to go on",
                )
            return code, f"the run has ended, with exit code {code}" if is_killed(returncode) else None
        if returncode in ENDED_BY_TERM and not is_reported:
            sentence = "a rank was ended before it could write; start the same command again"
            return int(ExitCode.RUN_AGAIN), None if is_silent else sentence
        code = int(ExitCode.INTERNAL_ERROR) if facts.abort_code is None else facts.abort_code
        if is_killed(returncode):
            return code, GONE_WITH_MPIRUN if are_gone else LEFT_BY_MPIRUN
        if returncode - 128 in DEADLY and not is_silent:
            return code, _death(signal.Signals(returncode - 128), facts.is_watched)
        if facts.is_stopping and facts.abort_code is None and not is_silent:
            return code, ENDED_WHILE_STOPPING
        return code, None


GONE_WITH_MPIRUN = (
    "the ranks have ended too, perhaps before they could write; start the same command again to go on from "
    "the last checkpoints"
)
LEFT_BY_MPIRUN = (
    "ranks may still run; they stop after their step. 'hpcbal status' tells whether the run goes on; then "
    "start the same command again"
)
ENDED_WHILE_STOPPING = (
    "the ranks were to stop, and were ended perhaps before they could write (by mpirun, if it was asked to "
    "end); start the same command again to go on from the last checkpoints"
)


def is_killed(returncode: int) -> bool:
    """Whether mpirun itself was killed: it has not ended its ranks then."""
    return -returncode in DEADLY


def _death(number: signal.Signals, is_watched: bool) -> str:
    """What is known of a death that no rank could report.

    Args:
        number: of the signal that ended the rank.
        is_watched: the run had started.
    """
    when = "" if is_watched else " while the run was starting"
    advice = "Nothing was trained in this start; start the same command again"
    if is_watched:
        advice = "Start the same command again to go on from the last checkpoints"
    return (
        f"a rank was ended by {number.name}{when} (mpirun tells which): killed by kill -9 or the "
        f"out-of-memory killer (see dmesg), or crashed. {advice}"
    )
