"""Compile a module with `torch.compile`, before it trains, for shares of any size."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._dynamo import config as settings

from hpcbal import env
from hpcbal.config.schema.dnn import DnnConfig
from hpcbal.data.spec import UNNAMED, LabelSpec, SampleSpec
from hpcbal.errors import InputError
from hpcbal.processes import is_rank
from hpcbal.training.torch.batch_norm import synchronised
from hpcbal.training.user_model import PROBE_LENGTHS, labels_of_probes, probe_arrays
from hpcbal.training.weights import Array

MOST_VERSIONS = 64
"""Versions of one function of Python, such as the `forward` of `Sequential`, which all modules of a rank
share: for each kind of module, in training and inference. With more, PyTorch would not compile the others."""


@dataclass(frozen=True, slots=True)
class Probes:
    """A few samples; see `hpcbal.training.backend.Batch`."""

    ids: Array
    x: Array | list[Array]
    y: Array
    work: float
    padding_limit: float = math.inf

    @classmethod
    def of(cls, sample: SampleSpec, label: LabelSpec, num_classes: int, num_slices: int) -> Probes:
        """Samples of zeros and ones as the data plane would bring them, the same ones in each slice."""
        arrays = probe_arrays(sample, PROBE_LENGTHS[0])
        x: Any = np.concatenate([_records(sample, arrays)] * num_slices)
        if None in sample.shape:
            x = list(x)
        y = np.concatenate([_records(label, labels_of_probes(label, num_classes))] * num_slices)
        return cls(np.zeros(len(x), np.int64), x, y, float(len(x)))


def _records(spec: SampleSpec | LabelSpec, arrays: Mapping[str, Array]) -> Array:
    """Arrays of several samples as one, as the data plane brings them."""
    if not spec.parts:
        return arrays[UNNAMED].astype(spec.dtype)
    each = zip(*arrays.values(), strict=True)
    return np.stack([spec.packed(dict(zip(arrays, row, strict=True))) for row in each])


def compile_module(dnn: DnnConfig, module: torch.nn.Module) -> None:
    """Let the calls of a module be compiled when they come; names in its `state_dict` stay.

    Raises:
        InputError: if there is no compiler for C++, or the module has layers that meet other ranks.
    """
    compiler = env.read("CXX") or "g++"
    if shutil.which(compiler) is None:
        raise InputError(
            f"DNN {dnn.name}: compile: got true, but there is no C++ compiler {compiler} on this machine; "
            "install or load one (such as module load gcc), name it in CXX, or leave compile out"
        )
    if synchronised(module):
        raise InputError(
            f"DNN {dnn.name}: compile: got true, but model {dnn.model} has layers that sum over the ranks of "
            "a group (SyncBatchNorm), allowed: false, or BatchNorm in their place"
        )
    if is_rank():
        _log_by_rank()
    limit = "recompile_limit" if hasattr(settings, "recompile_limit") else "cache_size_limit"  # before 2.6
    setattr(settings, limit, MOST_VERSIONS)
    setattr(settings, f"accumulated_{limit}", MOST_VERSIONS)
    forward = module.forward

    def compiled(*given: Any, **more: Any) -> Any:
        """Calls what PyTorch would not compile by itself, such as the `forward` of its own `Sequential`."""
        return forward(*given, **more)

    module.forward = torch.compile(compiled)


def _log_by_rank() -> None:
    """Let what PyTorch logs reach the log of the rank alone; its own handler prints it on stderr."""
    logger = logging.getLogger("torch")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    logger.propagate = True


def mark_sizes(*tensors: torch.Tensor | None) -> None:
    """Let code that is compiled for these tensors take any number of samples."""
    for tensor in tensors:
        if tensor is not None:
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
