"""Write checkpoints on a thread while training continues."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from hpcbal.checkpoint.best import ONLY_BEST, share_best, write_best
from hpcbal.checkpoint.state import TrainingState
from hpcbal.checkpoint.writer import PREVIOUS, FileIdentity, write_checkpoint
from hpcbal.errors import HpcbalError
from hpcbal.events.history import Position
from hpcbal.telemetry.files.atomic_file import remove_quietly


@dataclass(frozen=True, slots=True)
class WriteDone:
    """The outcome of one submitted state.

    Attributes:
        name: name of the job.
        seconds: time that the thread spent on it.
        last: whether it was written as the checkpoint.
        best: whether it was kept as the best weights.
        only_progress: whether it is a checkpoint without arrays, because only the best weights are kept.
        error: None if the whole checkpoint is on disk, else why not: OutputError, CheckpointError, or a plain
            HpcbalError for a fault of this program.
    """

    name: str
    epoch: int
    position: Position
    seconds: float
    last: bool = True
    best: bool = False
    only_progress: bool = False
    error: HpcbalError | None = None


@dataclass(frozen=True, slots=True)
class _Submission:
    directory: Path
    state: TrainingState
    final: bool
    last: bool
    best: bool


class BackgroundWriter:
    """One thread that writes checkpoints in the order of submission.

    A state is written as the job's checkpoint, as its best weights, or as both. A waiting state is dropped
    when newer ones of the same job contain everything that it held, unless it was submitted as final. Best
    weights stay if a checkpoint waits behind them: it needs the best weights up to its epoch. So at most
    three states per job wait, apart from final ones. Every state that is not dropped is reported by `poll`
    exactly once, including errors.

    The thread starts with the first submission. It dies with the process: a half-written file is never
    mistaken for a whole one. Use as a context manager, or call `close`.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._jobs: deque[_Submission] = deque()
        self._done: list[WriteDone] = []
        self._writing = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self._written: dict[Path, FileIdentity] = {}
        self._ahead: set[Path] = set()  # jobs whose best weights are newer than their checkpoints

    def submit(
        self,
        directory: str | os.PathLike[str],
        state: TrainingState,
        *,
        final: bool = False,
        last: bool = True,
        best: bool = False,
    ) -> None:
        """Queue `state` to be written to `directory`, and return at once.

        Args:
            directory: the job's directory, see `write_checkpoint`.
            state: its arrays must not change after this call.
            final: never drop this state in favour of a newer one (somebody waits for its report).
            last: write it as the checkpoint.
            best: keep its weights as the best ones; the last epoch of its history is the best one.
        """
        job = _Submission(Path(directory), state, final, last, best)
        with self._changed:
            if self._closed:
                raise HpcbalError(f"checkpoint of {state.name!r} was submitted to a closed writer")
            self._jobs = _still_needed([*self._jobs, job])
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="checkpoint-writer", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def poll(self) -> list[WriteDone]:
        """Return what finished since the last call, in order."""
        with self._changed:
            done, self._done = self._done, []
        return done

    @property
    def busy(self) -> bool:
        """Whether a submitted state is still to be written."""
        with self._changed:
            return self._writing or bool(self._jobs)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until everything submitted is written or has failed; return False after `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs and not self._writing, timeout_s)

    def close(self) -> None:
        """Write the waiting states, then end the thread; reports can still be polled."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> BackgroundWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closed)
                if not self._jobs:
                    return
                job = self._jobs.popleft()
                self._writing = True
            report = self._write(job)
            with self._changed:
                self._done.append(report)
                self._writing = False
                self._changed.notify_all()

    def _write(self, job: _Submission) -> WriteDone:
        state, error = job.state, None
        started = time.perf_counter()
        try:
            if job.last:
                known_whole = self._written.get(job.directory)
                self._written[job.directory] = write_checkpoint(job.directory, state, known_whole=known_whole)
                self._keep_best(job)
                self._ahead.discard(job.directory)
            else:
                self._keep_best(job)
                self._ahead.add(job.directory)
            if state.meta.get(ONLY_BEST):
                remove_quietly(job.directory / PREVIOUS)
        except HpcbalError as problem:
            error = problem
        except Exception as problem:  # report a bug as a failed write; do not end the thread
            error = HpcbalError(f"could not write the checkpoint of {state.name!r}: {problem!r}")
            error.__cause__ = problem
        seconds = time.perf_counter() - started
        only_progress = bool(state.meta.get(ONLY_BEST))
        parts = job.last, job.best, only_progress
        return WriteDone(state.name, state.epoch, state.position, seconds, *parts, error)

    def _keep_best(self, job: _Submission) -> None:
        if job.best:
            keep = share_best if job.last else write_best
            keep(job.directory, job.state, is_ahead=job.directory in self._ahead)


def _still_needed(jobs: Iterable[_Submission]) -> deque[_Submission]:
    """Drop states that newer ones of the same job make superfluous."""
    needed: deque[_Submission] = deque()
    has_last: set[Path] = set()  # jobs for which a newer state will be the checkpoint
    has_best: set[Path] = set()  # and those for which no newer checkpoint needs older best weights
    for job in reversed([*jobs]):
        is_newest = job.last and job.directory not in has_last
        if not (job.final or is_newest or (job.best and job.directory not in has_best)):
            continue
        needed.appendleft(job)
        if job.last:
            has_last.add(job.directory)
            has_best.discard(job.directory)
        if job.best:
            has_best.add(job.directory)
    return needed
