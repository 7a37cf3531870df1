"""Files of PyTorch: weights to start from, and trained modules that load without hpcbal."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcbal.data.spec import UNNAMED
from hpcbal.errors import InputError
from hpcbal.training.exported import Written, meaning_of
from hpcbal.training.groups import USER_ERRORS
from hpcbal.training.initial_weights import without_prefix
from hpcbal.training.layouts import module_shape
from hpcbal.training.outputs import by_name, named_outputs
from hpcbal.training.torch.calls import call
from hpcbal.training.torch.inputs import AnyTensor, each_of, probe_tensors
from hpcbal.training.torch.onnx_files import NOT_CHECKED, check_onnx_packages, onnx_outputs, save_onnx
from hpcbal.training.torch.replica import TorchReplica
from hpcbal.training.user_model import PROBE_LENGTHS
from hpcbal.training.weights import Arrays
from hpcbal.user_code import summary

log = logging.getLogger(__name__)

_TOLERANCE = 1e-4
"""Largest difference of outputs, relative to the largest output; another program sums in another order."""
_IN_CHECKPOINTS = ("state_dict", "model_state_dict", "model")
"""Under which names training loops put the weights into a file, beside other things."""


def read_state_dict(path: Path, prefix: str = "") -> Arrays:
    """The arrays of a `.pt`, `.pth` or `.safetensors` file by name; no code of the file runs.

    Args:
        prefix: only names that begin with it, without it.

    Raises:
        InputError: if the file cannot be read, holds no weights, or none of that prefix.
    """
    try:
        found = _safetensors(path) if path.suffix == ".safetensors" else _pickled(path)
    except FileNotFoundError as error:
        raise InputError(f"{path}: there is no such file") from error
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path}: it holds more than weights, such as a whole module, or it is no file of PyTorch; "
            "allowed: the state_dict of a module: torch.save(module.state_dict(), path)"
        ) from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: it is not a whole file of PyTorch ({summary(error)})") from error
    except (EOFError, LookupError, RuntimeError, TypeError) as error:
        log.info("reading %s failed: %s", path, summary(error))
        raise InputError(
            f"{path}: it is not a whole file of PyTorch: it was cut off, or is of another kind; allowed: the "
            "state_dict of a module: torch.save(module.state_dict(), path)"
        ) from error
    return without_prefix(path, found, prefix)


def _safetensors(path: Path) -> Arrays:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return _arrays(path, load_file(path))
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def _pickled(path: Path) -> Arrays:
    content = torch.load(path, map_location="cpu", weights_only=True)
    for name in _IN_CHECKPOINTS:
        if isinstance(content, Mapping) and isinstance(content.get(name), Mapping):
            content = content[name]
            break
    return _arrays(path, content)


def _arrays(path: Path, content: Any) -> Arrays:
    """Floating-point numbers of fewer than 32 bits become float32: NumPy has no bfloat16."""
    tensors = content if isinstance(content, Mapping) else {}
    found = {
        str(name): (tensor.float() if _is_short(tensor) else tensor).detach().numpy()
        for name, tensor in tensors.items()
        if torch.is_tensor(tensor)
    }
    if not found:
        raise InputError(f"{path}: it holds no weights, allowed: the state_dict of a module")
    return found


def _is_short(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.element_size() < np.dtype("float32").itemsize


def write_module(
    who: str, replica: TorchReplica, path: Path, format_name: str, losses: Mapping[str, str | None]
) -> Written:
    """Write the weights of a module, or the network as ONNX, and check what was written.

    Args:
        who: the DNN and its model, for messages.
        replica: with the weights to write.
        path: of the file.
        format_name: `pt` or `safetensors` for the `state_dict`, `onnx` for the network.
        losses: name of the loss of each output, see `meaning_of`.

    Raises:
        InputError: if the module cannot be written this way, or gives other outputs when it is loaded.
        OSError: if the file cannot be written.
    """
    replica.set_training(False)
    module = replica.module
    shape = module_shape(replica.inputs.shape)
    if None in shape and format_name == "onnx":
        raise InputError(
            f"{who} takes samples of unequal length, allowed as ONNX: samples of one shape; export the "
            "weights: --to FILE.pt or FILE.safetensors"
        )
    names = [name for name in replica.objective.by_name if name]
    if format_name == "onnx" and (names or replica.inputs.sample.parts):
        raise InputError(
            f"{who} has several named inputs or outputs, allowed as ONNX: one of each without a name; export "
            "the weights: --to FILE.pt or FILE.safetensors"
        )
    probes, wanted = _tried(replica)
    outputs = by_name(named_outputs(who, wanted, names))
    meaning = meaning_of(replica.objective.links, losses)
    notes = []
    if format_name == "onnx":
        assert isinstance(probes, torch.Tensor)
        notes += _write_onnx(who, module, path, probes, wanted)
    else:
        state = {name: tensor.detach().contiguous().clone() for name, tensor in module.state_dict().items()}
        if format_name == "safetensors":
            from safetensors.torch import save_file

            save_file(state, path)
        else:
            torch.save(state, path)
        found = read_state_dict(path)
        if any(
            not np.array_equal(found[name], tensor.numpy(), equal_nan=tensor.is_floating_point())
            for name, tensor in state.items()
        ):
            raise InputError(f"{who} was written, but other weights are read back from {path}")
        reader = "torch.load" if format_name == "pt" else "safetensors.torch.load_file"
        notes.append(
            "the file holds the weights alone: make the module with its function, then "
            f"load_state_dict({reader}(path))"
        )
    shapes = {name: tuple(output.shape[1:]) for name, output in outputs.items()}
    return Written(shapes.get(UNNAMED, shapes), meaning, notes=tuple(notes))


def _tried(replica: TorchReplica) -> tuple[AnyTensor, Any]:
    """A few samples, and the outputs for them; series are longer if the module fails on short ones."""
    shape = replica.inputs.shape
    for length in PROBE_LENGTHS if None in shape else PROBE_LENGTHS[:1]:
        probes = probe_tensors(replica.inputs.sample, replica.dtype, length)
        lengths = [length for given in shape if given is None]
        mask = torch.ones(len(each_of(probes)[0]), *lengths, dtype=torch.bool) if lengths else None
        try:
            with torch.no_grad():
                return probes, call(replica.module, replica.takes, probes, mask)
        except USER_ERRORS:
            if length == PROBE_LENGTHS[-1] or None not in shape:
                raise
    raise AssertionError(shape)


def _write_onnx(
    who: str, module: torch.nn.Module, path: Path, probes: torch.Tensor, wanted: torch.Tensor
) -> list[str]:
    """Write a network with samples of any number, and compare its outputs if ONNX Runtime is there."""
    otherwise = "export the weights: --to FILE.pt or FILE.safetensors"
    check_onnx_packages(who, otherwise)
    try:
        save_onnx(module, probes, path)
    except USER_ERRORS as error:
        raise InputError(
            f"{who} cannot be written as ONNX: {summary(error).splitlines()[0]}; {otherwise}"
        ) from error
    found = onnx_outputs(path, probes.numpy())
    if found is None:
        return [NOT_CHECKED]
    expected = wanted.numpy()
    tolerance = _TOLERANCE * max(1.0, float(np.abs(expected).max()))
    if found.shape != expected.shape or not np.allclose(found, expected, rtol=0.0, atol=tolerance):
        raise InputError(f"{who} gives other outputs as ONNX; export the weights: --to FILE.pt")
    return []
