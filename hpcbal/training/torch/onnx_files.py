"""Write networks as ONNX, and call what was written."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcbal.errors import InputError
from hpcbal.training.weights import Array

NOT_CHECKED = "the file was not checked, because onnxruntime is not installed"


def check_onnx_packages(who: str, otherwise: str) -> None:
    """Raise InputError if a package is missing that writing needs.

    Args:
        who: what is to be written, for the message.
        otherwise: what to do without them.
    """
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"{who}: writing ONNX needs {' and '.join(missing)}; install pip install 'hpcbal[onnx]', or "
            f"{otherwise}"
        )


def save_onnx(
    network: torch.nn.Module | torch.export.ExportedProgram, samples: torch.Tensor, path: Path
) -> None:
    """Write a network that takes `samples`, any number of them, and returns `outputs`."""
    with quiet_exporter():
        torch.onnx.export(
            network,
            (samples,),
            path,
            dynamo=True,
            input_names=["samples"],
            output_names=["outputs"],
            dynamic_shapes=({0: torch.export.Dim("n")},),
            external_data=False,
            verbose=False,
        )


def onnx_outputs(path: Path, samples: Array) -> Array | None:
    """Return the outputs of a file for some samples; None if ONNX Runtime is not installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found: Any = session.run(None, {"samples": np.ascontiguousarray(samples)})[0]
    return np.asarray(found)


@contextlib.contextmanager
def quiet_exporter() -> Iterator[None]:
    """Do without the warnings of the exporter, which are about PyTorch itself."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
