"""Start `hpcbal run`, send a signal to one of its processes at a chosen moment, and judge how it ended."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from support.starting import environment

import hpcbal
from hpcbal.telemetry.resources.processes import started_with

_PACKAGE = f"{Path(hpcbal.__file__).parent}{os.sep}"

STARTER, MPIRUN = "hpcbal run", "mpirun"
"""Targets of a signal besides a rank, which is written `rank 2`."""

TOKEN = "HPCBAL_SOAK_TOKEN"
RANK = "OMPI_COMM_WORLD_RANK"
LONGEST_S = 240.0
"""A start that takes longer than this hangs."""
LEAVE_S = 60.0
"""How long processes may outlive `hpcbal run`: longer than ranks that have lost their mpirun need."""
POLL_S = 0.005

_token = itertools.count()


@dataclass(frozen=True, slots=True)
class Disturbance:
    """One signal to one process of a start.

    Attributes:
        target: `STARTER`, `MPIRUN` or `rank N`.
        number: KILL, TERM or INT.
        num_epochs: the signal waits for this many more epochs of the run; None: only for the target process,
            so it comes while the run starts.
        delay_s: further delay.
        while_saving: before that delay it waits until a checkpoint or best weights are being written.
    """

    target: str
    number: signal.Signals
    num_epochs: int | None
    delay_s: float
    while_saving: bool = False

    def __str__(self) -> str:
        after = "its start" if self.num_epochs is None else f"{self.num_epochs} epochs"
        after += " and a save" if self.while_saving else ""
        return f"{self.number.name} to {self.target} {self.delay_s:.2f} s after {after}"


@dataclass(frozen=True, slots=True)
class End:
    """How a start ended.

    Attributes:
        code: return code of `hpcbal run`; None if it had to be killed because it hung.
        out, err: what it printed.
        was_sent: whether the signal found its target.
        was_caught: whether the target had installed its handlers by then.
        num_left: number of processes that outlived it by more than `LEAVE_S`.
    """

    code: int | None
    out: str
    err: str
    was_sent: bool = False
    was_caught: bool = True
    num_left: int = 0


class Start:
    """A running `hpcbal run` and all processes that came out of it; as a context manager it leaves none.

    Args:
        folder: has run.yaml and a folder tmp; the run's output is in its folder out.
    """

    def __init__(self, folder: Path) -> None:
        self.ledger = folder / "out" / "ledger.jsonl"
        self._token = f"{os.getpid()}:{next(_token)}"
        self._paths = folder / "stdout", folder / "stderr"
        command = [sys.executable, "-m", "hpcbal", "run", "run.yaml"]
        own = {TOKEN: self._token, "TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1"}
        # Files, not pipes: a process that outlives its parent would keep a pipe open.
        with self._paths[0].open("wb") as out, self._paths[1].open("wb") as err:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment(**own), stdout=out, stderr=err, start_new_session=True
            )

    def __enter__(self) -> Start:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()
        self.process.wait()

    def num_epochs(self) -> int:
        """Number of epochs in the ledger so far."""
        with contextlib.suppress(FileNotFoundError):
            return self.ledger.read_bytes().count(b'"epoch-done"')
        return 0

    def pid_of(self, target: str) -> int | None:
        """The process of a target; None if it does not run."""
        if target == STARTER:
            return self.process.pid if self.process.poll() is None else None
        if target == MPIRUN:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
            with contextlib.suppress(OSError):
                return next((int(word) for word in children.read_text().split()), None)
            return None
        wanted = f"{RANK}={target.removeprefix('rank ')}".encode()
        for pid in started_with(TOKEN, self._token):
            with contextlib.suppress(OSError):
                if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    return pid
        return None

    def wait_for(self, condition: Callable[[], bool]) -> bool:
        """Wait until `condition` holds; False if the start ends before, or hangs."""
        give_up_s = time.monotonic() + LONGEST_S
        while not condition():
            if self.process.poll() is not None or time.monotonic() > give_up_s:
                return False
            time.sleep(POLL_S)
        return True

    def send(self, disturbance: Disturbance) -> tuple[bool, bool]:
        """Send the signal at its moment; returns whether it found its target, and whether it was caught."""
        if disturbance.num_epochs is not None:
            wanted = self.num_epochs() + disturbance.num_epochs
            self.wait_for(lambda: self.num_epochs() >= wanted)
        if disturbance.while_saving:
            dnns = self.ledger.with_name("dnns")
            self.wait_for(lambda: any(dnns.glob("*/*.h5.tmp")))
        if not self.wait_for(lambda: self.pid_of(disturbance.target) is not None):
            return False, False
        time.sleep(disturbance.delay_s)
        pid = self.pid_of(disturbance.target)
        if pid is None:
            return False, False
        was_caught = catches_signals(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, disturbance.number)
            return True, was_caught
        return False, False

    def end(self, was_sent: bool = False, was_caught: bool = True) -> End:
        """Wait for the end of all processes."""
        code: int | None
        try:
            code = self.process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            code = None
            self.kill_all()
            self.process.wait()
        give_up_s = time.monotonic() + LEAVE_S
        while (left := started_with(TOKEN, self._token)) and time.monotonic() < give_up_s:
            time.sleep(0.05)
        self.kill_all()
        out, err = (path.read_text(encoding="utf-8", errors="replace") for path in self._paths)
        return End(code, out, err, was_sent, was_caught, len(left))

    def kill_all(self) -> None:
        """Kill what is left of this start."""
        for pid in started_with(TOKEN, self._token):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def catches_signals(pid: int) -> bool:
    """Whether a process has the handlers of hpcbal, which are the only ones for USR2."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = re.search(r"SigCgt:\s*([0-9a-f]+)", status)
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGUSR2 - 1) & 1)


def disturbed(folder: Path, disturbance: Disturbance) -> End:
    """One start with one signal, to its end."""
    with Start(folder) as start:
        return start.end(*start.send(disturbance))


def undisturbed(folder: Path) -> End:
    """One start that nobody disturbs, to its end."""
    with Start(folder) as start:
        return start.end()


def unexplained(disturbance: Disturbance, end: End) -> str | None:
    """Return the fault in the end of a disturbed start; None if its code is right and its reason is given."""
    if end.code is None:
        return f"it hung for {LONGEST_S:g} s"
    if end.num_left:
        return f"{end.num_left} processes were left behind"
    if not end.was_caught and _is_not_ours(disturbance, end):
        return None if disturbance.target == STARTER or _reason(end) else "no reason"
    if disturbance.target == STARTER and end.was_sent and disturbance.number == signal.SIGKILL:
        return None if end.code == -signal.SIGKILL else f"exit code {end.code}"
    if end.code not in _codes(disturbance, end):
        return f"exit code {end.code}"
    if "Traceback" in end.err:
        return "a traceback"
    if end.code and not _reason(end):
        return f"exit code {end.code} without a reason"
    return None


def _is_not_ours(disturbance: Disturbance, end: End) -> bool:
    """Whether the signal came before Python could run any code of hpcbal.

    Python's own traceback then has frames of its own modules, and at most that of the script that starts us.
    """
    if end.code == -disturbance.number or "Fatal Python error: init" in end.err:
        return True
    frames = re.findall(r'^ +File "([^"]+)"', end.err, re.MULTILINE)
    interrupted = re.search("^KeyboardInterrupt$", end.err, re.MULTILINE) is not None
    return interrupted and bool(frames) and not any(frame.startswith(_PACKAGE) for frame in frames)


def _codes(disturbance: Disturbance, end: End) -> tuple[int, ...]:
    """The exit codes allowed; 0 if the run was over before the signal had an effect."""
    if not end.was_sent:
        return (0,)
    if disturbance.number == signal.SIGKILL:
        return (0, 1, 75)  # 75: an orphaned rank has stopped cleanly
    if disturbance.target == STARTER:
        return (0, 75, 130) if disturbance.number == signal.SIGINT and not end.was_caught else (0, 75)
    if disturbance.target == MPIRUN:
        return (0, 1, 75)  # mpirun gives the ranks a second to stop cleanly
    return (0, 75)


def _reason(end: End) -> bool:
    """Whether a line says why the run has ended and what to do."""
    if end.code == 130:
        return "interrupted" in end.err
    return bool(re.search(r"[Rr]un the same command again", end.err + end.out))
