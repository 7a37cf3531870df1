"""Gather TensorFlow's gradients into one buffer on their GPU, for an MPI that takes memory of GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hpcbal.training.mpi_collective import Packed, Packer
from hpcbal.training.weights import Array

_CPU, _CUDA, _ROCM = 1, 2, 10
"""Kinds of devices in DLPack."""


class DevicePacker(Packer):
    """Packs tensors that lie on a device, without a copy through the host's memory.

    Args:
        kind: the kind of device, as TensorFlow names it; tests use CPU.
    """

    def __init__(self, kind: str = "GPU") -> None:
        self._part = f"device:{kind}:"

    def pack(self, tensors: Sequence[Any], status: Array) -> Packed | None:
        if not tensors or not all(self._lies_here(tensor) for tensor in tensors):
            return None
        return _PackedOnDevice(tensors, status)

    def _lies_here(self, tensor: Any) -> bool:
        return isinstance(tensor, tf.Tensor) and self._part in tensor.device


class _PackedOnDevice(Packed):
    """One new tensor, whose memory MPI overwrites with the sums.

    Nobody else has the tensor, so that it may change. MPI knows nothing of the device's queue: the tensor's
    end is read first, which waits until all of it has been computed.
    """

    def __init__(self, tensors: Sequence[tf.Tensor], status: Array) -> None:
        self._shapes = [tensor.shape for tensor in tensors]
        self._num_status = status.size
        with tf.device(tensors[0].device):
            last = tf.convert_to_tensor(status.astype(tensors[0].dtype.as_numpy_dtype))
            self._flat = tf.concat([*(tf.reshape(tensor, [-1]) for tensor in tensors), last], 0)
        self._status().numpy()
        self.buffer = _Buffer(self._flat)

    def unpack(self) -> tuple[Sequence[Any], Array]:
        sizes = [shape.num_elements() for shape in self._shapes]
        parts = tf.split(self._flat, [*sizes, self._num_status])
        tensors = [tf.reshape(part, shape) for part, shape in zip(parts, self._shapes, strict=False)]
        return tensors, self._status().numpy().astype(np.float64)

    def _status(self) -> tf.Tensor:
        return self._flat[-self._num_status :]


class _Buffer:
    """A tensor's memory in DLPack's form, which mpi4py takes."""

    def __init__(self, flat: tf.Tensor) -> None:
        self._flat = flat

    def __dlpack__(self, stream: object = None) -> Any:
        """Return a capsule of DLPack's first version; a caller that wants a later one tries again."""
        return tf.experimental.dlpack.to_dlpack(self._flat)

    def __dlpack_device__(self) -> tuple[int, int]:
        device = tf.DeviceSpec.from_string(self._flat.device)
        if device.device_type == "CPU":
            return _CPU, 0
        return _ROCM if tf.test.is_built_with_rocm() else _CUDA, device.device_index
