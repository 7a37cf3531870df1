"""Batches of the data plane as tensors: images with channels first, padded samples with their mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hpcbal.data.arrays import Affine
from hpcbal.data.spec import CLASS_LABEL, LabelSpec, SampleSpec
from hpcbal.training.backend import Batch
from hpcbal.training.layouts import IMAGE_RANK
from hpcbal.training.padding import padded, varying_axes
from hpcbal.training.weights import Array


@dataclass(frozen=True, slots=True)
class Tensors:
    """A batch on the device.

    Attributes:
        x: samples, shape (n, *`module_shape`), in the type of the model.
        y: labels, shape (n, *label shape); whole numbers are int64, others have the type of the model.
        weights: of the samples in the loss, shape (n,); None: 1.
        mask: true within a sample, bool, shape (n, *lengths of the axes that differ); None if none differ.
        is_shared: whether `x` lies in memory of the data plane, which nobody may change.
    """

    x: torch.Tensor
    y: torch.Tensor
    weights: torch.Tensor | None
    mask: torch.Tensor | None
    is_shared: bool


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
        self.shape = tuple(sample.shape)
        self._sample_dtype = np.dtype(sample.dtype)
        self._dtype = dtype
        self._device = device
        self._varying = varying_axes(self.shape)
        self._is_image = len(self.shape) == IMAGE_RANK
        self._label_shape = tuple(label.shape)
        self._label_dtype = np.dtype("int64") if np.dtype(label.dtype).kind in "iu" else _numpy_of(dtype)
        self._weights = None if sample_weights is None else np.asarray(sample_weights, _numpy_of(dtype))
        self._on_device = [
            (
                _torch_of(operation.dtype),
                torch.as_tensor(operation.factor, dtype=_torch_of(operation.dtype), device=device),
                torch.as_tensor(operation.shift, dtype=_torch_of(operation.dtype), device=device),
            )
            for operation in on_device
        ]

    def tensors(self, batch: Batch) -> Tensors:
        """The batch as a model takes it."""
        mask = None
        if isinstance(batch.x, list):
            array, real = padded(batch.x, self.shape, self._sample_dtype.str, batch.padding_limit)
            mask = self._moved(real)
        else:
            array = np.asarray(batch.x, self._sample_dtype)
        found = x = self._moved(array)
        for dtype, factor, shift in self._on_device:
            x = x.to(dtype) * factor - shift
        if self._on_device and mask is not None:  # padding stays zero, as if it came after the operations
            x = x * self._within(mask)
        x = x.to(self._dtype)
        is_shared = x is found and self._device.type == "cpu"
        if self._is_image:
            x = x.permute(0, 3, 1, 2)
        labels = self.labels(batch.y)
        weights = None if self._weights is None else self._moved(self._weights[batch.ids])
        return Tensors(x, self._moved(labels), weights, mask, is_shared)

    def labels(self, y: Array) -> Array:
        """Labels of any byte order as losses and metrics get them, shape (n, *label shape)."""
        return np.asarray(y, self._label_dtype).reshape(-1, *self._label_shape)

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
