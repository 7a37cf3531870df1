"""Fit speed models in a process of its own, beside training and never in its way."""

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

FIT_LIMIT_S = 1800.0  # at the lowest priority, on cores that are full, a fit of seconds may take minutes
COMMAND = (sys.executable, "-m", "hpcbal.speed_models")
# What launchers tell their ranks: a process that inherits it would take itself for a rank.
LAUNCHER_PREFIXES = (
    "HOROVOD_", "HYDI_", "HYDRA_", "I_MPI_", "JSM_", "LSB_", "LSF_", "MPICH_", "MPIR_", "MV2_",
    "OMPI_", "OPAL_", "ORTE_", "PALS_", "PMI_", "PMIX_", "PRTE_", "SLURM_", "UCX_",
)  # fmt: skip
ONE_THREAD = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


class FitFailedError(HpcbalError):
    """The process that fits ended without a model, or did not end."""


class FitProcess:
    """Starts a process per fit and holds its result until it is asked for.

    The process has the lowest priority, one thread, no accelerator, and knows nothing of MPI. It ends when
    this one does, even if that is killed.

    Args:
        command: what to start, given one more argument, the lifeline; another one in tests.
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
        """Whether a fit is under way, or its result has not been taken."""
        return self._fitted is not None

    def start(self, job: FitJob, keep: Callable[[SpeedPredictor], None] | None = None) -> None:
        """Begin a fit; not while one `is_busy`. Returns at once: packing and starting is a thread's work.

        Args:
            keep: called by that thread with the model, before it can be taken.
        """
        assert self._fitted is None, "a fit is under way"
        self._fitted = Future()
        arguments = (job, self._fitted, keep)
        self._thread = threading.Thread(target=self._fit, args=arguments, name="fit", daemon=True)
        self._thread.start()

    def take(self) -> SpeedPredictor | None:
        """The model, once, when it is there.

        Raises: FitFailedError: there will be none; told once.
        """
        if self._fitted is None or not self._fitted.done():
            return None
        fitted, self._fitted = self._fitted, None
        return fitted.result()

    def close(self) -> None:
        """End what is under way; its result is lost."""
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
        except Exception as error:  # whatever went wrong is told where the result is taken
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
                    start_new_session=True,  # Ctrl-C is left to us, and it can give way to all others
                )
            with process:
                try:
                    answer, told = process.communicate(job, self._limit_s)
                except subprocess.TimeoutExpired as error:
                    process.kill()
                    raise FitFailedError(f"it was not done after {self._limit_s:.0f} s") from error
            with self._lock:
                self._process = None
            if process.returncode:
                last = told.decode(errors="replace").strip().rpartition("\n")[2]
                how = f"with code {process.returncode}"
                if process.returncode < 0:
                    how = f"by {signal.Signals(-process.returncode).name}"
                raise FitFailedError(f"it ended {how}: {last or 'it told nothing'}")
            return unpack_model(answer)[2]
        finally:
            os.close(lifeline)
            os.close(held)


def fit_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the process: that of this one, without its launcher, accelerators and threads."""
    kept = {name: value for name, value in environ.items() if not name.startswith(LAUNCHER_PREFIXES)}
    package = str(Path(hpcbal.__file__).parents[1])
    kept["PYTHONPATH"] = os.pathsep.join(part for part in (package, kept.get("PYTHONPATH")) if part)
    kept |= {"CUDA_VISIBLE_DEVICES": "-1", "ROCR_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    return kept | dict.fromkeys(ONE_THREAD, "1")
