"""Write checkpoints on a thread while training continues."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from hpcbal.checkpoint.state import TrainingState
from hpcbal.checkpoint.writer import FileIdentity, write_checkpoint
from hpcbal.errors import CheckpointError, HpcbalError
from hpcbal.values import Position


@dataclass(frozen=True, slots=True)
class WriteDone:
    """The outcome of one submitted state.

    Attributes:
        name: name of the job.
        seconds: time that the thread spent on it.
        error: None if the whole checkpoint is on disk, else the reason (OutputError or CheckpointError).
    """

    name: str
    epoch: int
    position: Position
    seconds: float
    error: HpcbalError | None = None


@dataclass(frozen=True, slots=True)
class _Submission:
    directory: Path
    state: TrainingState
    final: bool


class BackgroundWriter:
    """One thread that writes checkpoints in the order of submission.

    A waiting state is dropped when a newer one of the same job is submitted, unless it was submitted as
    final: the newer state contains everything that it held. At most one state per job waits, apart from final
    ones. Every state that is not dropped is reported by `poll` exactly once, including errors.

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

    def submit(self, directory: str | os.PathLike[str], state: TrainingState, *, final: bool = False) -> None:
        """Queue `state` to be written to `directory`, and return at once.

        Args:
            directory: the job's directory, see `write_checkpoint`.
            state: its arrays must not change after this call.
            final: never drop this state in favour of a newer one (somebody waits for its report).
        """
        job = _Submission(Path(directory), state, final)
        with self._changed:
            if self._closed:
                raise CheckpointError(f"checkpoint of {state.name!r} was submitted to a closed writer")
            self._jobs = deque(
                waiting for waiting in self._jobs if waiting.final or waiting.directory != job.directory
            )
            self._jobs.append(job)
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
            known_whole = self._written.get(job.directory)
            self._written[job.directory] = write_checkpoint(job.directory, state, known_whole=known_whole)
        except HpcbalError as problem:
            error = problem
        except Exception as problem:  # report a bug as a failed write; do not end the thread
            error = CheckpointError(f"could not write the checkpoint of {state.name!r}: {problem!r}")
            error.__cause__ = problem
        return WriteDone(state.name, state.epoch, state.position, time.perf_counter() - started, error)
