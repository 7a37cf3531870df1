"""Fit speed models in a separate process, beside training and without slowing it down."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path

import hpcbal
from hpcbal.errors import HpcbalError
from hpcbal.policies.batching.speed import SpeedPredictor
from hpcbal.speed_models.fitters import FitJob
from hpcbal.speed_models.packing import pack_job, unpack_model

FIT_LIMIT_S = 1800.0  # at the lowest priority on busy cores, a fit of seconds may take minutes
COMMAND = (sys.executable, "-m", "hpcbal.speed_models")
# Variables that launchers set for ranks: a process that inherits them would behave like a rank.
LAUNCHER_PREFIXES = (
    "HOROVOD_", "HYDI_", "HYDRA_", "I_MPI_", "JSM_", "LSB_", "LSF_", "MPICH_", "MPIR_", "MV2_",
    "OMPI_", "OPAL_", "ORTE_", "PALS_", "PMI_", "PMIX_", "PRTE_", "SLURM_", "UCX_",
)  # fmt: skip
ONE_THREAD = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


class FitFailedError(HpcbalError):
    """The fitting process ended without a model, or did not end."""


class FitProcess:
    """Starts one process per fit and keeps its result until it is taken.

    The process has the lowest priority, one thread, no accelerator, and does not use MPI. It ends when this
    process does, even if this process is killed.

    Args:
        command: what to start, with the lifeline as one more argument; tests pass another command.
        limit_s: a fit that takes longer is killed.
    """

    def __init__(self, command: tuple[str, ...] = COMMAND, limit_s: float = FIT_LIMIT_S) -> None:
        self._command = command
        self._limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._fitted: Future[SpeedPredictor] | None = None
        self._closed = False

    @property
    def is_busy(self) -> bool:
        """Whether a fit is running, or its result has not been taken."""
        return self._fitted is not None

    def start(self, job: FitJob, keep: Callable[[SpeedPredictor], None] | None = None) -> None:
        """Start a fit; not allowed while `is_busy`. Returns at once: a thread packs the job and starts it.

        Args:
            keep: called by that thread with the model, before the model can be taken.
        """
        assert self._fitted is None, "a fit is running"
        self._fitted = Future()
        arguments = (job, self._fitted, keep)
        self._thread = threading.Thread(target=self._fit, args=arguments, name="fit", daemon=True)
        self._thread.start()

    def take(self) -> SpeedPredictor | None:
        """Return the model, once, when it is ready.

        Raises: FitFailedError: if there will be no model; raised once.
        """
        if self._fitted is None or not self._fitted.done():
            return None
        fitted, self._fitted = self._fitted, None
        return fitted.result()

    def close(self) -> None:
        """End the running fit; its result is lost."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()
        if self._thread is not None:
            self._thread.join()

    def _fit(
        self,
        job: FitJob,
        fitted: Future[SpeedPredictor],
        keep: Callable[[SpeedPredictor], None] | None,
    ) -> None:
        try:
            model = self._run(pack_job(job))
            if keep is not None:
                keep(model)
            fitted.set_result(model)
        except Exception as error:  # any error is raised when the result is taken
            failed = error if isinstance(error, FitFailedError) else FitFailedError(f"{error}")
            failed.__cause__ = None if failed is error else error
            fitted.set_exception(failed)

    def _run(self, job: bytes) -> SpeedPredictor:
        lifeline, held = os.pipe()
        try:
            with self._lock:
                if self._closed:
                    raise FitFailedError("training ended before it began")
                self._process = process = subprocess.Popen(
                    [*self._command, str(lifeline)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=fit_environment(os.environ),
                    pass_fds=(lifeline,),
                    start_new_session=True,  # only we handle Ctrl-C, and the session can get a low weight
                )
            with process:
                try:
                    answer, output = process.communicate(job, self._limit_s)
                except subprocess.TimeoutExpired as error:
                    process.kill()
                    raise FitFailedError(f"it was not done after {self._limit_s:.0f} s") from error
            with self._lock:
                self._process = None
            if process.returncode:
                last = output.decode(errors="replace").strip().rpartition("\n")[2]
                how = f"with code {process.returncode}"
                if process.returncode < 0:
                    how = f"by {signal.Signals(-process.returncode).name}"
                raise FitFailedError(f"it ended {how}: {last or 'no output'}")
            return unpack_model(answer)[2]
        finally:
            os.close(lifeline)
            os.close(held)


def fit_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the process: like this one's, without launcher, accelerators and threads."""
    kept = {name: value for name, value in environ.items() if not name.startswith(LAUNCHER_PREFIXES)}
    package = str(Path(hpcbal.__file__).parents[1])
    kept["PYTHONPATH"] = os.pathsep.join(part for part in (package, kept.get("PYTHONPATH")) if part)
    kept |= {"CUDA_VISIBLE_DEVICES": "-1", "ROCR_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    return kept | dict.fromkeys(ONE_THREAD, "1")
