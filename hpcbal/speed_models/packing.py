"""Fitted models and fit jobs as bytes: NumPy's .npz without pickles, checked when read."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import fields

import numpy as np

from hpcbal.errors import InputError
from hpcbal.policies.batching.arima import Arima
from hpcbal.policies.batching.curves import FloatArray
from hpcbal.policies.batching.narx import Narx
from hpcbal.policies.batching.recurrent import Recurrent
from hpcbal.policies.batching.speed import SpeedHistory, SpeedPredictor
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
