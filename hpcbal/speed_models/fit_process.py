"""Fit speed models in a separate process, beside training and without slowing it down."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import fields
from pathlib import Path

import numpy as np

import hpcbal
from hpcbal.errors import HpcbalError, InputError
from hpcbal.policies.batching.networks import Arima, Narx, Recurrent
from hpcbal.policies.batching.speed import SpeedHistory, SpeedPredictor
from hpcbal.policies.batching.time_curves import FloatArray
from hpcbal.speed_models.fitters import FITTERS, FitJob

FORMAT_VERSION = 1
_KINDS: Mapping[str, type[SpeedPredictor]] = {
    "arima": Arima,
    "lstm": Recurrent,
    "narx": Narx,
    "rnn": Recurrent,
}
_HISTORY = ("speeds", "cpu", "memory")
_NOTE = "note"  # format version, kind and, for a job, whether a previous model follows


class DamagedModelError(InputError):
    """Bytes that are not a whole model, or not a whole job, of this version."""


def pack_model(name: str, model: SpeedPredictor) -> bytes:
    """Pack a model that the fitter `name` has made."""
    return _pack(name, _arrays_of(name, model))


def unpack_model(data: bytes) -> tuple[str, int, SpeedPredictor]:
    """Name of the fitter, number of workers, and the model, which was tried out for these workers.

    Raises: DamagedModelError: with the reason.
    """
    name, arrays = _unpack(data)
    model = _model_of(name, arrays)
    return name, len(next(iter(arrays.values()))), model


def pack_job(job: FitJob) -> bytes:
    """Pack what another process needs to run `job`; drop a `previous` that the fitter would ignore."""
    arrays = {f"recording/{field}": getattr(job.recording, field) for field in _HISTORY}
    if isinstance(job.previous, _KINDS[job.name]):
        previous = _arrays_of(job.name, job.previous)
        arrays |= {f"previous/{field}": array for field, array in previous.items()}
    return _pack(job.name, arrays)


def unpack_job(data: bytes) -> FitJob:
    """Unpack a job.

    Raises: DamagedModelError: with the reason.
    """
    name, arrays = _unpack(data)
    parts = [arrays.get(f"recording/{field}") for field in _HISTORY]
    speeds, cpu, memory = parts
    if speeds is None or cpu is None or memory is None or not speeds.shape == cpu.shape == memory.shape:
        raise DamagedModelError("the recording of the job is not whole")
    prefix = "previous/"
    previous = {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}
    return FitJob(name, SpeedHistory(speeds, cpu, memory), _model_of(name, previous) if previous else None)


def _arrays_of(name: str, model: SpeedPredictor) -> dict[str, FloatArray]:
    if not isinstance(model, _KINDS[name]):
        raise TypeError(f"{name} makes a {_KINDS[name].__name__}, not a {type(model).__name__}")
    return {field: getattr(model, field) for field in _array_fields(name)}


def _array_fields(name: str) -> list[str]:
    return [field.name for field in fields(_KINDS[name]) if field.name != "cell"]  # type: ignore[arg-type]


def _model_of(name: str, arrays: Mapping[str, FloatArray]) -> SpeedPredictor:
    """Make the model and try it: arrays that do not fit each other fail here, not between two iterations."""
    if sorted(arrays) != sorted(_array_fields(name)):
        raise DamagedModelError(
            f"a model of kind {name} has {_array_fields(name)}, but this one has {sorted(arrays)}"
        )
    if len({array.shape[:1] for array in arrays.values()}) != 1 or not next(iter(arrays.values())).shape:
        raise DamagedModelError("the parts of the model are for different numbers of workers")
    cell = {"cell": name} if _KINDS[name] is Recurrent else {}
    num_workers = len(next(iter(arrays.values())))
    trial = SpeedHistory(*(np.full((num_workers, 8), value) for value in (1.0, 0.5, 0.5)))
    try:
        model = _KINDS[name](**cell, **arrays)
        answer = model.predict(trial)
    except (ValueError, IndexError) as error:
        raise DamagedModelError(f"the parts of the model do not fit each other: {error}") from error
    if answer.shape != (num_workers,):
        raise DamagedModelError(f"the model returns shape {answer.shape} for {num_workers} workers")
    return model


def _pack(name: str, arrays: Mapping[str, FloatArray]) -> bytes:
    if name not in FITTERS:
        raise KeyError(f"{name} is not a fitter; known: {', '.join(sorted(FITTERS))}")
    buffer = io.BytesIO()
    np.savez(buffer, **{_NOTE: np.array([str(FORMAT_VERSION), name]), **arrays})
    return buffer.getvalue()


def _unpack(data: bytes) -> tuple[str, dict[str, FloatArray]]:
    """Kind and arrays; each part carries a checksum, which is verified on reading."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            parts = {key: file[key] for key in file.files}
    except (ValueError, OSError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile) as error:
        raise DamagedModelError(f"it cannot be read: {error}") from error
    note = parts.pop(_NOTE, np.array([]))
    if note.shape != (2,) or note.dtype.kind != "U":
        raise DamagedModelError("it was not written by hpcbal")
    version, name = note.tolist()
    if version != str(FORMAT_VERSION) or name not in FITTERS:
        raise DamagedModelError(
            f"it is {name!r} in format {version}; this hpcbal reads format {FORMAT_VERSION} of "
            f"{', '.join(sorted(FITTERS))}"
        )
    wrong = [key for key, array in parts.items() if array.dtype.kind != "f"]
    if wrong:
        raise DamagedModelError(f"{', '.join(wrong)}: not floating-point numbers")
    return name, {key: np.asarray(array, np.float64) for key, array in parts.items()}


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
