"""Call the user's function that makes a model, whatever backend trains it."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import math
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from hpcbal import env
from hpcbal.config.callables import MODEL, misfits
from hpcbal.config.imports import load_object
from hpcbal.config.schema.dnn import DnnConfig
from hpcbal.config.schema.optimizer import OptimizerConfig
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.errors import HpcbalError, InputError, UserCodeError
from hpcbal.training.groups import USER_ERRORS
from hpcbal.training.weights import Array
from hpcbal.user_code import is_ctrl_c, summary

log = logging.getLogger(__name__)

_MOST_BYTES = 1 << 14
_NAMES_SHOWN = 12
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_AXES = re.compile(r"ndim|to unpack|index out of range(?! in self)|[34]D ")
_LOGGED: set[tuple[str, str]] = set()
_REDIRECTION = threading.RLock()
"""All threads have one stdout: of two that redirect it at a time, each could leave the other's behind."""


NUM_PROBES = 3
"""Samples on which a model is called before it is trained."""

PROBE_LENGTHS = (32, 256)
"""Lengths of these samples where samples differ in length; the second for models that fail on the first."""

SUM_TOLERANCE = 1e-4
"""How far from 1 the outputs of a softmax may sum to; in float32 they differ by some 1e-6."""


def probe_samples(shape: Sequence[int | None], length: int) -> Array:
    """Samples of zeros and ones: valid as pixels and as indices, and the same on every rank.

    Args:
        shape: of a sample; axes that differ get `length`.
    """
    lengths = [length if n is None else n for n in shape]
    return np.random.default_rng(0).integers(0, 2, (NUM_PROBES, *lengths)).astype(np.float64)


def probe_arrays(sample: SampleSpec, length: int) -> dict[str, Array]:
    """`probe_samples` for each array of a sample, by name."""
    return {name: probe_samples(spec.shape, length) for name, spec in sample.by_name.items()}


def labels_of_probes(label: LabelSpec, num_classes: int) -> dict[str, Array]:
    """`probe_labels` for each label of a sample, by name."""
    return {name: probe_labels(spec, spec.num_classes or num_classes) for name, spec in label.by_name.items()}


def probe_labels(label: LabelSpec, num_classes: int) -> Array:
    """Labels for the probes: classes, int64, or zeros and ones, float64; the same on every rank."""
    shape = (NUM_PROBES, *label.shape)
    if np.dtype(label.dtype).kind in "iu":
        return np.arange(math.prod(shape)).reshape(shape) % min(num_classes, 2 + len(label.shape))
    if label.shape == (num_classes,):  # may be shares of classes
        return np.eye(num_classes)[np.arange(NUM_PROBES) % num_classes]
    return np.random.default_rng(2).integers(0, 2, shape).astype(float)


def make_model(dnn: DnnConfig, shape: Any, num_classes: Any) -> Any:
    """Import the callable, and call it with the shape of a sample, the number of classes and `args`.

    Args:
        dnn: names the callable and its `args`.
        shape: of a sample as the model gets it; of each array by name, if arrays have names.
        num_classes: number of classes, or of outputs; of each label by name, if labels have names.

    Raises:
        InputError: if it does not exist, or does not take these arguments.
        UserCodeError: if it raises.
    """
    with user_errors(dnn, "importing it"):
        function = load_object(dnn.model)
    with contextlib.suppress(ValueError):  # some callables written in C have no signature
        found = misfits(dnn.model, inspect.signature(function), dnn.args, MODEL)
        if found:
            raise InputError(f"DNN {dnn.name}: {'; '.join(misfit.text for misfit in found)}")
    args = env.expanded(dnn.args, f"DNN {dnn.name}: args")
    with user_errors(dnn, "building it"), _printing_to_log(dnn.name):
        return function(shape, num_classes, **args)


@contextlib.contextmanager
def _printing_to_log(name: str) -> Iterator[None]:
    """Log what a model's function prints, such as `model.summary()`, once: it is called for each stay."""
    kept = _Kept()
    stdout = io.TextIOWrapper(io.BufferedWriter(kept), "utf-8", "backslashreplace", line_buffering=True)
    try:
        with _REDIRECTION, contextlib.redirect_stdout(stdout):
            yield
    finally:
        stdout.flush()
        text = kept.take()
        if text and (name, text) not in _LOGGED:
            _LOGGED.add((name, text))
            log.info("%s: the model's function printed:\n%s", name, text)


class _Kept(io.RawIOBase):
    """A file in memory that keeps the beginning of what is written; after `take`, it is stdout again."""

    def __init__(self) -> None:
        self._kept: bytearray | None = bytearray()
        self._num_dropped = 0

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1  # for child processes; what they print goes where they would print without hpcbal

    def write(self, chunk: Any) -> int:
        data = bytes(chunk)
        if self._kept is None:
            return os.write(1, data)
        taken = data[: _MOST_BYTES - len(self._kept)]
        self._kept += taken
        self._num_dropped += len(data) - len(taken)
        return len(data)

    def take(self) -> str:
        """Return what was written, without the codes that set colors, and how much is missing."""
        kept, self._kept = self._kept or b"", None
        text = _ESCAPES.sub("", kept.decode(errors="replace")).rstrip()
        return text + (f"\n[{self._num_dropped} more bytes were dropped]" if self._num_dropped else "")


@contextlib.contextmanager
def user_errors(dnn: DnnConfig, doing: str) -> Iterator[None]:
    """Turn what a user's code raises into a `UserCodeError`; hpcbal's errors and `MemoryError` pass.

    Args:
        dnn: its model is running.
        doing: what is done with the model.
    """
    try:
        yield
    except (HpcbalError, MemoryError):
        raise
    except USER_ERRORS as error:
        if is_ctrl_c(error):  # in a script; ranks catch it
            raise
        raise UserCodeError(f"DNN {dnn.name}: model {dnn.model}: {doing} failed: {summary(error)}") from error


@contextlib.contextmanager
def hint_at_shapes(sample: SampleSpec) -> Iterator[None]:
    """Add to errors of a user's model that its samples differ in size, or may be images without channels.

    The latter only where the message is about axes: series have two of them, too, and other errors.
    """
    try:
        yield
    except UserCodeError as error:
        shape = tuple(sample.shape)
        if sample.parts:
            raise
        if None in shape:
            hint = (
                f"Samples of shape {shape} differ in size: use a model that takes such samples, or add "
                "resize, center_crop or random_crop to preprocessing"
            )
        elif len(shape) == 2 and _is_about_axes(str(error), shape):
            hint = (
                f"If samples of shape {shape} are images, give them an axis of channels, as layout: hw of "
                "hpcbal.data:map_style does"
            )
        else:
            raise
        raise UserCodeError(f"{error}. {hint}") from error


def _is_about_axes(message: str, shape: Sequence[int | None]) -> bool:
    return _AXES.search(message) is not None or ", ".join(map(str, shape)) in message


def check_synchronised(dnn: DnnConfig) -> None:
    """Check that layers can sum over the ranks of a group within a step.

    They need all samples of a step at once. And MPI must allow other threads to call it, one at a time: those
    of TensorFlow, or those that go back through a module.

    Raises:
        InputError: if the DNN computes its steps in slices, or if this MPI was built or started without
            thread support.
    """
    from mpi4py import MPI

    if dnn.accumulate > 1:
        raise InputError(
            f"DNN {dnn.name}: accumulate: got {dnn.accumulate}, allowed with synchronised layers: 1, because "
            "they need all samples of a step at once; use layers that are not synchronised (batch_norm: "
            "local), which take each slice for itself"
        )
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise InputError(
            f"DNN {dnn.name}: synchronised layers need an MPI that threads may call (MPI_THREAD_SERIALIZED), "
            "but this one allows only the main thread; use batch_norm: local, or an MPI with thread support"
        )


def check_optimizer_args(dnn_name: str, settings: OptimizerConfig, kind: Callable[..., Any]) -> None:
    """Check that the arguments of an optimizer are numbers, pairs of numbers and so on, as its defaults are.

    Raises:
        InputError: if one is of another kind; libraries fail on these somewhere inside.
    """
    parameters = inspect.signature(kind).parameters
    for name, value in settings.args.items():
        default = parameters[name].default if name in parameters else None
        if isinstance(default, tuple):
            is_right = isinstance(value, list | tuple) and len(value) == len(default)
            is_right = is_right and all(
                _is_number(each) or (each is None and own is None)
                for each, own in zip(value, default, strict=True)
            )
            shown = ", ".join("null" if each is None else f"{each:g}" for each in default)
            allowed = f"a list of {len(default)} numbers, such as [{shown}]"
        elif isinstance(default, bool):
            is_right, allowed = isinstance(value, bool), "true, false"
        elif _is_number(default):
            is_right, allowed = _is_number(value), f"a number, such as {default:g}"
        else:
            continue
        if not is_right:
            raise InputError(
                f"DNN {dnn_name}: optimizer.args.{name}: got {value!r}, allowed for {settings.name}: "
                f"{allowed}"
            )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def exclusions_in_vain(settings: OptimizerConfig, trainable: Iterable[str]) -> list[str]:
    """Warnings of parts of names in `no_weight_decay` that no trainable weight has.

    Args:
        trainable: names of the trainable weights.
    """
    names = sorted(set(trainable))
    shown = ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")
    return [
        f"optimizer.no_weight_decay: no weight has {part!r} in its name; names are {shown}"
        for part in settings.no_weight_decay
        if not any(part in name for name in names)
    ]
