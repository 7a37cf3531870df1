"""Batches of the data plane as tensors: images with channels first, padded samples with their mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch

from hpcbal.data.arrays import Affine
from hpcbal.data.spec import CLASS_LABEL, UNNAMED, LabelSpec, SampleSpec
from hpcbal.training.backend import Batch
from hpcbal.training.rank_share import IMAGE_RANK, module_shape, padded, varying_axes
from hpcbal.training.user_model import probe_samples
from hpcbal.training.weights import Array

AnyTensor: TypeAlias = torch.Tensor | dict[str, torch.Tensor]
"""A tensor, or several by name."""


@dataclass(frozen=True, slots=True)
class Tensors:
    """A batch on the device.

    Attributes:
        x: samples, shape (n, *`module_shape`), in the type of the model; a dict of them if arrays have names.
        y: labels of each output, shape (n, *label shape); whole numbers are int64, others have the type of
            the model.
        weights: of the samples in the loss, shape (n,); None: 1.
        mask: true within a sample, bool, shape (n, *lengths of the axes that differ); None if none differ.
        is_shared: whether `x` lies in memory of the data plane, which nobody may change.
    """

    x: AnyTensor
    y: dict[str, torch.Tensor]
    weights: torch.Tensor | None
    mask: torch.Tensor | None
    is_shared: bool

    @property
    def labels(self) -> AnyTensor:
        """The labels, by name if they have names."""
        return self.y.get(UNNAMED, self.y)


def each_of(x: AnyTensor) -> list[torch.Tensor]:
    """The tensors of samples or outputs, in the order of their names."""
    return list(x.values()) if isinstance(x, dict) else [x]


def version_of(x: AnyTensor) -> int:
    """A number that grows if one of the tensors is changed in place."""
    return sum(each._version for each in each_of(x))


def mapped(function: Callable[[torch.Tensor], torch.Tensor], x: AnyTensor) -> AnyTensor:
    """The results for a tensor, or for each of several by name."""
    return {name: function(each) for name, each in x.items()} if isinstance(x, dict) else function(x)


class TorchInput:
    """The input of one replica: samples as they come from the data plane, turned into the model's own.

    On the CPU samples and labels stay where they are if they have the type of the model already: an image
    with its channels first is a view (`torch.channels_last`).

    Args:
        sample: shape and type of one sample, as batches hold it.
        on_device: applied in order, before the cast to the model's type.
        dtype: of the model.
        device: where it computes.
        label: shape and type of one label.
        sample_weights: how much a sample counts in the loss, by id, shape (samples of the dataset,); None: 1.
    """

    def __init__(
        self,
        sample: SampleSpec,
        on_device: Sequence[Affine],
        dtype: torch.dtype,
        device: torch.device,
        label: LabelSpec = CLASS_LABEL,
        sample_weights: Array | None = None,
    ) -> None:
        self.sample, self._label = sample, label
        self.shape = tuple(sample.shape)
        self._dtype = dtype
        self._device = device
        self._varying = varying_axes(self.shape)
        self._label_dtypes = {
            name: np.dtype("int64") if np.dtype(each.dtype).kind in "iu" else _numpy_of(dtype)
            for name, each in label.by_name.items()
        }
        self._weights = None if sample_weights is None else np.asarray(sample_weights, _numpy_of(dtype))
        self._on_device = [
            (
                operation.of,
                _torch_of(operation.dtype),
                torch.as_tensor(operation.factor, dtype=_torch_of(operation.dtype), device=device),
                torch.as_tensor(operation.shift, dtype=_torch_of(operation.dtype), device=device),
            )
            for operation in on_device
        ]

    def tensors(self, batch: Batch) -> Tensors:
        """The batch as a model takes it. Arrays with names are copied out of the records of their samples."""
        mask = None
        if isinstance(batch.x, list):
            array, real = padded(batch.x, self.shape, self.sample.dtype, batch.padding_limit)
            mask = self._moved(real)
        else:
            array = np.asarray(batch.x, self.sample.dtype)
        is_shared = False
        arrays: dict[str, torch.Tensor] = {}
        for name, part in self.sample.unpacked(array).items():
            arrays[name], lies_there = self._prepared(name, part, mask)
            is_shared |= lies_there
        labels = {name: self._moved(part) for name, part in self.labels(batch.y).items()}
        weights = None if self._weights is None else self._moved(self._weights[batch.ids])
        return Tensors(arrays.get(UNNAMED, arrays), labels, weights, mask, is_shared)

    def _prepared(self, name: str, array: Array, mask: torch.Tensor | None) -> tuple[torch.Tensor, bool]:
        """An array of samples as a model takes it, and whether it lies in memory of the data plane."""
        found = x = self._moved(np.ascontiguousarray(array))
        operations = [rest for of, *rest in self._on_device if of == name]
        for dtype, factor, shift in operations:
            x = x.to(dtype) * factor - shift
        if operations and mask is not None:  # padding stays zero, as if it came after the operations
            x = x * self._within(mask)
        x = x.to(self._dtype)
        is_shared = x is found and self._device.type == "cpu"
        return x.permute(0, 3, 1, 2) if array.ndim == 1 + IMAGE_RANK else x, is_shared

    def labels(self, y: Array) -> dict[str, Array]:
        """Labels of any byte order as losses and metrics get them, shape (n, *label shape), by output."""
        return {
            name: np.ascontiguousarray(
                np.asarray(part, self._label_dtypes[name]).reshape(-1, *self._label.by_name[name].shape)
            )
            for name, part in self._label.unpacked(y).items()
        }

    def _moved(self, array: Array) -> torch.Tensor:
        tensor = view_of(array)
        if self._device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self._device, non_blocking=True)

    def _within(self, mask: torch.Tensor) -> torch.Tensor:
        """The mask with an axis for each axis of the samples, to broadcast."""
        for axis in range(len(self.shape)):
            if axis not in self._varying:
                mask = mask.unsqueeze(axis + 1)
        return mask


def probe_tensors(sample: SampleSpec, dtype: torch.dtype, length: int) -> AnyTensor:
    """A few samples of zeros and ones, as a model takes them; see `probe_samples`."""
    found = {}
    for name, spec in sample.by_name.items():
        x = torch.from_numpy(probe_samples(module_shape(spec.shape), length)).to(dtype)
        is_image = len(spec.shape) == IMAGE_RANK
        found[name] = x.contiguous(memory_format=torch.channels_last) if is_image else x
    return found.get(UNNAMED, found)


def view_of(array: Array) -> torch.Tensor:
    """A tensor in the memory of `array`, which must not change while the tensor is in use."""
    if not array.flags.writeable and array.size:
        array = array.view()
        try:
            array.flags.writeable = True  # PyTorch has no tensors that are read-only
        except ValueError:  # whoever owns the memory does not allow it
            array = array.copy()
    if any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


def _numpy_of(dtype: torch.dtype) -> np.dtype:
    return np.dtype("float64" if dtype == torch.float64 else "float32")


def _torch_of(name: str) -> torch.dtype:
    return torch.from_numpy(np.zeros(0, name)).dtype
