"""Decide what `hpcbal run` does with the ranks that it has started, and what their end means.

A state machine without IO. Its inputs are the facts of the start file, the signals, and mpirun's return code;
its outputs are actions, the exit code and sentences for the user. `supervision` performs the actions.
"""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass, replace

from hpcbal.errors import ExitCode
from hpcbal.runtime.handoff.leftovers import TRAINING, Sentences
from hpcbal.runtime.handoff.start_file import StartFacts

# mpirun returns 128 + one of these if a signal ended a rank; other codes above 128 are mpirun's own.
DEADLY = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)
ENDED_BY_TERM = (-signal.SIGTERM, 128 + signal.SIGTERM)
ENDED_BY_INT = 128 + signal.SIGINT


class Action(enum.Enum):
    """An action of `hpcbal run` while mpirun runs."""

    REPORT_LAST_WORDS = enum.auto()
    PASS_ON_STOP = enum.auto()
    KILL = enum.auto()
    GIVE_UP = enum.auto()
    FORCE = enum.auto()
    EXPLAIN_SILENCE = enum.auto()


ANSWER_S = 6.0
"""Rank 0 answers a request to stop at once; if there is no answer for so long, or a rank stays suspended for
so long, the ranks are killed."""

FORCE_S = 3.0
"""If mpirun has not ended so long after it was asked to kill the ranks, it is killed with them. So whatever
they do, the whole stop takes less than 10 s, unless they write checkpoints."""

QUIET_S = 20.0
"""How long the ranks may print nothing before a sentence says what they may be doing."""


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
    """The actions of `hpcbal run` so far on its ranks.

    Attributes:
        has_passed_on: it has asked the ranks to stop.
        has_killed: it has killed them at the user's request.
        has_given_up: it has killed them because they did not answer a request to stop, or cannot follow it.
        killed_s: when it has killed them, in seconds since the first signal.
        has_forced: it has killed mpirun too, which did not end.
        has_reported: it has reported the last words of a rank.
        has_explained: it has said why the ranks print nothing.
        sentences: what to say; they depend on the verb.
    """

    has_passed_on: bool = False
    has_killed: bool = False
    has_given_up: bool = False
    killed_s: float = 0.0
    has_forced: bool = False
    has_reported: bool = False
    has_explained: bool = False
    sentences: Sentences = TRAINING

    def sentence_of(self, action: Action, facts: StartFacts) -> str:
        """Return the sentence to print when the action is taken."""
        if action is Action.REPORT_LAST_WORDS:
            return str(facts.last_words)
        if action is Action.GIVE_UP:
            why = "a rank was suspended" if self._has_answered(facts) else "the ranks did not answer"
            return f"{why} for {ANSWER_S:.0f} s; {self.sentences.killing}"
        if action is Action.FORCE:
            return f"mpirun did not end within {FORCE_S:.0f} s; killing it with the ranks"
        if action is Action.EXPLAIN_SILENCE:
            return (
                f"the ranks have printed nothing for {QUIET_S:.0f} s: they first load MPI, TensorFlow or "
                "PyTorch and the data, which takes long on a busy machine or a slow file system (Ctrl-C: "
                "stop)"
            )
        return self.sentences.stopping if action is Action.PASS_ON_STOP else self.sentences.killing

    def look(
        self,
        facts: StartFacts,
        *,
        stop: bool,
        kill: bool,
        stop_s: float = 0.0,
        suspended_s: float = 0.0,
        quiet_s: float = 0.0,
    ) -> tuple[StartMachine, tuple[Action, ...]]:
        """Decide what to do now, while mpirun runs; returns the next state and the actions.

        Last words are reported soon, because mpirun may take long to end the ranks. A stop is forwarded
        once the ranks can handle it, but not after the run has decided its exit code.

        Args:
            facts: the facts so far.
            stop: whether a signal has asked for a stop, now or earlier.
            kill: whether the user has asked to kill the ranks since the last call.
            stop_s: seconds since the first signal.
            suspended_s: how long a rank has been suspended since that signal.
            quiet_s: for how long the ranks have printed nothing since they were started.
        """
        after, actions = self, []
        if facts.last_words is not None and not self.has_reported and not self.has_killed:
            after = replace(after, has_reported=True)
            actions.append(Action.REPORT_LAST_WORDS)
        if quiet_s > QUIET_S and not stop and not self.has_explained:
            after = replace(after, has_explained=True)
            actions.append(Action.EXPLAIN_SILENCE)
        is_due = stop and facts.is_ready and facts.exit_code is None
        if is_due and not self.has_passed_on and not self.has_killed:
            after = replace(after, has_passed_on=True)
            actions.append(Action.PASS_ON_STOP)
        if kill:
            after = replace(after, has_killed=True, killed_s=self.killed_s or stop_s)
            actions.append(Action.KILL)
        elif self.has_killed:
            if stop_s - self.killed_s > FORCE_S and not self.has_forced:
                after = replace(after, has_forced=True)
                actions.append(Action.FORCE)
        elif suspended_s > ANSWER_S or (stop_s > ANSWER_S and not self._has_answered(facts)):
            after = replace(after, has_killed=True, has_given_up=True, killed_s=stop_s)
            actions.append(Action.GIVE_UP)
        return after, tuple(actions)

    @staticmethod
    def _has_answered(facts: StartFacts) -> bool:
        return facts.is_stopping or facts.exit_code is not None

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
                return code, self.sentences.stopped
            return code, f"the run has ended with exit code {code}" if is_killed(returncode) else None
        code = int(ExitCode.INTERNAL_ERROR) if facts.abort_code is None else facts.abort_code
        if is_killed(returncode) and not (self.has_forced and are_gone):
            return code, self.sentences.gone_with_mpirun if are_gone else self.sentences.left_by_mpirun
        if self.has_killed:
            if self.has_given_up and facts.abort_code is None:
                code = int(ExitCode.RUN_AGAIN)
            return code, self.sentences.killed
        if facts.abort_code is not None or is_reported:  # the rank that aborts has reported why
            return code, None
        return self._undecided(returncode, facts, stop)

    def _undecided(self, returncode: int, facts: StartFacts, stop: bool) -> tuple[int, str]:
        """The meaning of an end that no rank has decided or explained."""
        if returncode in ENDED_BY_TERM or (returncode == ENDED_BY_INT and not facts.is_ready):
            return ExitCode.RUN_AGAIN, self.sentences.ended_by_signal
        if returncode - 128 in DEADLY:
            return ExitCode.INTERNAL_ERROR, self._death(signal.Signals(returncode - 128), facts)
        if returncode and stop:  # the stop reached mpirun too, which kills the ranks
            return ExitCode.RUN_AGAIN, self.sentences.ended_while_stopping
        if returncode and facts.is_stopping:
            return ExitCode.INTERNAL_ERROR, self.sentences.ended_while_stopping
        return ExitCode.INTERNAL_ERROR, self.sentences.ended_undecided if facts.is_ready else ENDED_EARLY

    def _death(self, number: signal.Signals, facts: StartFacts) -> str:
        """The sentence about a death by this signal that no rank could report."""
        when = "" if facts.is_watched else " while the run was starting"
        advice = self.sentences.again if facts.is_watched else self.sentences.died_early
        return (
            f"a rank was ended by {number.name}{when} (mpirun reports which): killed by kill -9 or the "
            f"out-of-memory killer (see dmesg), or crashed. {advice}"
        )


ENDED_EARLY = (
    "the ranks ended while they were starting: mpirun got a signal or could not start them, or one of them "
    "failed; see the messages above, if any, then run the same command again"
)


def is_killed(returncode: int) -> bool:
    """Whether mpirun itself was killed; in that case it has not ended its ranks."""
    return -returncode in DEADLY
