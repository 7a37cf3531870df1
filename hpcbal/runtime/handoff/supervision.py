"""Wait for mpirun and its ranks: forward the user's signals to them, and report why they end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection
from pathlib import Path
from types import FrameType
from typing import Any

from hpcbal import env
from hpcbal.errors import OutputError
from hpcbal.processes import SHIELDED, say
from hpcbal.runtime.handoff.clean_output import Outputs
from hpcbal.runtime.handoff.leftovers import TRAINING, Leftovers, Sentences, kill_started
from hpcbal.runtime.handoff.start_file import LAUNCH_DIR, StartFile
from hpcbal.runtime.handoff.start_machine import Action, StartMachine, is_killed
from hpcbal.stop_signals import STOP_SIGNALS, deliver_stop_signals
from hpcbal.telemetry.resources.processes import (
    living_children,
    pending_signals,
    process_is_gone,
    process_is_suspended,
    started_with,
)

STARTER = "HPCBAL_STARTER"

POLL_INTERVAL_S = 0.1

DRAIN_S = 2.0
"""How long to wait for the last lines of an mpirun that has ended, so that they come before the report."""

LAST_WORDS_S = 3.0
"""How long the reason of an end waits for mpirun, which takes about a second to end the ranks."""

SAME_SIGNAL_S = 1.0
"""A TERM that follows another signal sooner than this is the same request."""

ORPHANS_S = 30.0
"""How long to wait for ranks whose mpirun was killed; they stop at the end of a step."""


class Requests:
    """The user's requests, sent as signals: stop, and with a second Ctrl-C or a later TERM, kill the ranks.

    A context manager that catches the signals, also those that have waited since the program began. If
    Python code has started this process, its end is a request to stop, as the end of a terminal is.
    """

    def __init__(self) -> None:
        self.num_signals = 0
        self._first_s = 0.0
        self.first_signal: str | None = None
        self._kill = False
        self._before: dict[int, Any] = {}
        self._starter = env.read(STARTER)

    def __enter__(self) -> Requests:
        self._before = {number: signal.signal(number, self._handle) for number in STOP_SIGNALS}
        deliver_stop_signals()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if self.num_signals == 0:
            self._first_s = now_s
        # Batch systems send TERM to several processes of a job, so that one of them may get it twice at once.
        asks_again = number == signal.SIGINT or (number == signal.SIGTERM and self.stop_s > SAME_SIGNAL_S)
        self._kill |= asks_again and self.num_signals > 0  # later signals do not cancel it
        self.first_signal = self.first_signal or signal.Signals(number).name
        self.num_signals += 1

    def note(self, numbers: Collection[int]) -> None:
        """Count signals that somebody has sent to mpirun, if they are the first request.

        They are seen late, and stay pending: they never count as a second request.
        """
        if numbers and not self.stop:
            self._handle(min(numbers), None)

    def note_end_of_starter(self) -> None:
        """Count the end of the Python code that has started this process as a closed terminal."""
        if self._starter is not None and str(os.getppid()) != self._starter:
            self.note({signal.SIGHUP})

    @property
    def stop(self) -> bool:
        """Whether a signal has arrived."""
        return self.num_signals > 0

    @property
    def stop_s(self) -> float:
        """Seconds since the first signal; 0 if there was none."""
        return time.monotonic() - self._first_s if self.stop else 0.0

    def take_kill(self) -> bool:
        """Whether to kill the ranks; True once per request."""
        kill, self._kill = self._kill, False
        return kill


def supervise(
    process: subprocess.Popen[bytes],
    directory: Path,
    requests: Requests,
    outputs: Outputs | None = None,
    sentences: Sentences = TRAINING,
) -> int:
    """Wait for mpirun and its ranks; returns the exit code of `hpcbal run`.

    Args:
        process: mpirun. On USR2 it asks the ranks to stop, on INT it kills them; TERM and HUP stay pending.
        directory: the launch directory of this start.
        requests: the user's requests.
        outputs: what mpirun prints, as it is forwarded.
        sentences: what to say about the end.
    """
    start = StartFile(directory)
    machine, leftovers = StartMachine(sentences=sentences), Leftovers(process.pid, directory)
    start_s = time.monotonic()
    runs_s = 0.0  # when all processes were last seen to run, or nobody had asked to stop
    while True:
        try:
            returncode = process.wait(POLL_INTERVAL_S)
            break
        except subprocess.TimeoutExpired:
            facts = start.read()
        requests.note(pending_signals(process.pid).intersection(SHIELDED))
        requests.note_end_of_starter()
        now_s = time.monotonic()
        if not requests.stop or not _is_any_suspended(process.pid):
            runs_s = now_s
        machine, actions = machine.look(
            facts,
            stop=requests.stop,
            kill=requests.take_kill(),
            stop_s=requests.stop_s,
            suspended_s=now_s - runs_s,
            quiet_s=0.0 if outputs is None or outputs.has_begun else now_s - start_s,
        )
        for action in actions:
            if action is Action.PASS_ON_STOP:
                with contextlib.suppress(OutputError):  # on a full disk the ranks report USR2
                    start.add(stop_signal=requests.first_signal)
                process.send_signal(signal.SIGUSR2)
            elif action in (Action.KILL, Action.GIVE_UP):
                process.send_signal(signal.SIGINT)
            elif action is Action.FORCE:
                kill_started(directory)
                process.kill()
            if action is Action.REPORT_LAST_WORDS:
                _let_mpirun_speak(process, outputs)
            report(machine.sentence_of(action, facts))
        if (sentence := leftovers.end(facts, stop=requests.stop)) is not None:
            report(sentence)
    if outputs is not None and not is_killed(returncode):
        outputs.drain(DRAIN_S)  # not for ever: a process that outlives the ranks may hold a pipe
        if outputs.are_held and (sentence := leftovers.kill()) is not None:
            report(sentence)
            outputs.drain(DRAIN_S)
    are_gone = (
        machine.has_forced
        or not is_killed(returncode)
        or wait_for_orphans(start, directory, requests, -returncode)
    )
    if outputs is not None and are_gone:
        outputs.drain(DRAIN_S)  # what ranks have printed after the end of their mpirun
    end = machine.end(returncode, start.read(), stop=requests.stop, are_gone=are_gone)
    for sentence in end.sentences:
        report(sentence)
    return end.code


def _is_any_suspended(mpirun: int) -> bool:
    """Whether mpirun or one of its ranks is suspended."""
    return any(process_is_suspended(pid) for pid in (mpirun, *(living_children(mpirun) or ())))


def _let_mpirun_speak(process: subprocess.Popen[bytes], outputs: Outputs | None) -> None:
    """Give mpirun a moment to end and to print its own lines, so that the reason is the last line."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        if not is_killed(process.wait(LAST_WORDS_S)) and outputs is not None:
            outputs.drain(DRAIN_S)


def wait_for_orphans(start: StartFile, directory: Path, requests: Requests, number: int) -> bool:
    """Ask ranks whose mpirun was killed to stop, and wait for them; returns whether all have ended.

    The ranks survive their mpirun and hold the run's lock. Open MPI 5 aborts each of them some time later,
    in any MPI call, so a clean stop is not guaranteed.

    A rank is found by its environment, because in its first second Python is still loading and holds no lock.
    The environment disappears before the process does, so processes found this way are then polled by id.

    Args:
        start, directory: the start file and the launch directory of this start.
        requests: the user's requests; any signal ends the waiting.
        number: number of the signal that ended mpirun.
    """
    report(
        f"mpirun was ended by {signal.Signals(number).name}; waiting for the ranks to stop (Ctrl-C: "
        "do not wait for them)"
    )
    start.hint(is_orphaned=True)  # if the disk is full, they notice when this process ends
    found: set[int] = set()

    def are_gone() -> bool:
        running = started_with(LAUNCH_DIR, str(directory))
        found.update(running)
        return not running and all(process_is_gone(pid) for pid in found)

    return _wait_until(are_gone, requests, ORPHANS_S)


def _wait_until(condition: Callable[[], bool], requests: Requests, timeout_s: float) -> bool:
    """Wait for `condition`, until the next signal or the timeout; returns whether it is met."""
    before, give_up_s = requests.num_signals, time.monotonic() + timeout_s
    while not (is_met := condition()) and requests.num_signals == before and time.monotonic() < give_up_s:
        time.sleep(POLL_INTERVAL_S)
    return is_met


def report(text: str) -> None:
    """Print a message of `hpcbal run` itself on stderr."""
    say(f"hpcbal: {text}")
