"""One block of samples in memory: the layout of its parts, and NumPy views of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.arrays import LINE_BYTES, aligned_empty
from hpcbal.data.spec import LabelSpec, SampleSpec

# Words of a cell's header, int64.
GENERATION, BLOCK, NUM_SAMPLES, NUM_VALID, PAYLOAD_BYTES = range(5)

NO_BLOCK = -1
"""Block number in a header that ends a producer's blocks."""


@dataclass(frozen=True, slots=True)
class CellLayout:
    """Sizes of a cell's two memories, and byte offsets in the first one.

    The metadata are header, flags, extents, sizes and labels; each starts on a cache line. The payload, the
    samples, is separate: samples of equal shape follow each other without a gap, from one cell of a ring to
    the next. Blocks whose samples are smaller than the bound travel without unused bytes.

    Attributes:
        block_samples: samples of a full block.
        sample: spec of the samples.
        label: spec of the labels.
        is_sized: whether the samples' sizes are stored with them.
        valid: offset of the flags, uint8 (block_samples,).
        extents: offset of the places, int64 (block_samples, 1 + axes): byte offset in the payload, shape;
            used only if shapes differ.
        sizes: offset of the relative sizes, float64 (block_samples,); takes no space if all are equal.
        labels: offset of the labels, (block_samples, *label shape).
        meta_bytes: size of the metadata, a multiple of a cache line.
        payload_bytes: size of the payload.
    """

    block_samples: int
    sample: SampleSpec
    label: LabelSpec
    is_sized: bool
    valid: int
    extents: int
    sizes: int
    labels: int
    meta_bytes: int
    payload_bytes: int

    @classmethod
    def of(
        cls, block_samples: int, sample: SampleSpec, label: LabelSpec, *, is_sized: bool = False
    ) -> CellLayout:
        """Lay out cells for `block_samples` (>= 1) samples of at most `sample.max_bytes` each."""
        valid = LINE_BYTES + aligned(8 * block_samples)  # after header and ids
        extents = valid + aligned(block_samples)
        num_axes = 0 if sample.is_static else 1 + len(sample.shape)
        sizes = extents + aligned(8 * num_axes * block_samples)
        labels = sizes + aligned(8 * is_sized * block_samples)
        meta = labels + aligned(label.num_bytes * block_samples)
        # Samples of different size are each aligned to 16 bytes, which is enough for every dtype.
        share = sample.max_bytes if sample.is_static else aligned(sample.max_bytes, 16)
        payload = share * block_samples
        return cls(block_samples, sample, label, is_sized, valid, extents, sizes, labels, meta, payload)

    @property
    def num_bytes(self) -> int:
        """Size of the cell."""
        return self.meta_bytes + self.payload_bytes


class Cell:
    """Views of one cell's memory, in the ring or in private memory.

    Attributes:
        parts: uint8, the whole metadata and the whole payload.
        header: int64 words as Python ints (a memoryview takes an eighth of NumPy's time per word).
        ids: int64, shape (block_samples,).
        valid: bool, shape (block_samples,).
        sizes: relative sizes of valid samples, shape (block_samples,); shape (0,) if all are equal.
        y: labels, shape (block_samples, *label shape).
        x: samples, shape (block_samples, *sample shape); shape (0,) if shapes differ.
    """

    __slots__ = (
        "_extents",
        "_layout",
        "_payload",
        "_static",
        "_used",
        "header",
        "ids",
        "parts",
        "sizes",
        "valid",
        "x",
        "y",
    )

    def __init__(
        self,
        layout: CellLayout,
        memory: NDArray[np.uint8],
        payload: NDArray[np.uint8],
    ) -> None:
        """View the memory of a cell.

        Args:
            layout: layout of the cell.
            memory: of the metadata, uint8 of shape (layout.meta_bytes,) that starts on a cache line.
            payload: of the samples, uint8 of shape (layout.payload_bytes,).
        """
        num, sample = layout.block_samples, layout.sample
        self._layout = layout
        self._static = sample.is_static
        self._used = 0
        self.parts = memory, payload
        self.header = memory[:LINE_BYTES].view(np.int64).data
        self.ids = memory[LINE_BYTES : LINE_BYTES + 8 * num].view(np.int64)
        self.valid = memory[layout.valid : layout.valid + num].view(np.bool_)
        self.sizes = memory[layout.sizes : layout.sizes + 8 * num * layout.is_sized].view(np.float64)
        labels = memory[layout.labels : layout.labels + num * layout.label.num_bytes]
        self.y = labels.view(layout.label.dtype).reshape(num, *layout.label.shape)
        self._payload = payload
        if self._static:
            static = tuple(length for length in sample.shape if length is not None)
            self.x: NDArray[Any] = payload.view(sample.dtype).reshape(num, *static)
            self._extents = np.empty((0, 0), np.int64)
        else:
            self.x = np.empty(0, sample.dtype)
            num_words = num * (1 + len(sample.shape))
            extents = memory[layout.extents : layout.extents + 8 * num_words].view(np.int64)
            self._extents = extents.reshape(num, 1 + len(sample.shape))

    @classmethod
    def private(cls, layout: CellLayout) -> Cell:
        """Make a cell in private memory of this rank."""
        memory, payload = (
            aligned_empty((num_bytes,), "uint8") for num_bytes in (layout.meta_bytes, layout.payload_bytes)
        )
        return cls(layout, memory, payload)

    def begin(self, generation: int, block: int, ids: NDArray[np.int64]) -> None:
        """Start a new block with these ids, shape (1..block_samples,); all samples begin as broken."""
        self.ids[: len(ids)] = ids
        self.valid[:] = False
        self._used = 0
        header = self.header
        header[GENERATION], header[BLOCK], header[NUM_SAMPLES], header[NUM_VALID] = (
            generation,
            block,
            len(ids),
            0,
        )

    def put(self, index: int, sample: NDArray[Any], label: NDArray[Any], size: float = 1.0) -> None:
        """Write one sample that fits the spec; `index` must grow from call to call.

        Args:
            size: its relative size, > 0; kept only if sizes are stored.
        """
        if not self._static:
            flat = np.ascontiguousarray(sample).reshape(-1).view(np.uint8)
            self._payload[self._used : self._used + flat.nbytes] = flat
            self._extents[index, 0] = self._used
            self._extents[index, 1:] = sample.shape
            self._used += aligned(flat.nbytes, 16)
        else:
            self.x[index] = sample
        if self._layout.is_sized:
            self.sizes[index] = size
        self.y[index] = label
        self.valid[index] = True
        self.header[NUM_VALID] += 1

    def put_many(
        self,
        first: int,
        samples: NDArray[Any],
        labels: NDArray[Any],
        sizes: NDArray[np.float64] | None = None,
    ) -> None:
        """Write samples of static shape, stacked along the first axis, from index `first` on.

        Args:
            sizes: their relative sizes, > 0; needed if sizes are stored.
        """
        last = first + len(samples)
        self.x[first:last] = samples
        if sizes is not None and self._layout.is_sized:
            self.sizes[first:last] = sizes
        self.y[first:last] = labels
        self.valid[first:last] = True
        self.header[NUM_VALID] += len(samples)

    def fill(self, copy: Callable[[NDArray[Any], NDArray[Any]], bool]) -> bool:
        """Write all samples of a block of static shape, if `copy` writes all of them and their labels.

        Args:
            copy: gets the arrays of the samples and labels to write to, and returns whether it has done so.
        """
        num = self.header[NUM_SAMPLES]
        if not copy(self.x[:num], self.y[:num]):
            return False
        self.valid[:num] = True
        self.header[NUM_VALID] = num
        return True

    def finish(self) -> None:
        """Record how many bytes of the payload the block takes."""
        used = self._used
        if self._static:
            used = self.header[NUM_SAMPLES] * self._layout.sample.max_bytes
        self.header[PAYLOAD_BYTES] = used

    def message(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """The bytes to send after `finish`: the metadata, and the used part of the payload."""
        memory, payload = self.parts
        return memory, payload[: self.header[PAYLOAD_BYTES]]

    def is_whole(self) -> bool:
        """Whether no sample of the block is broken."""
        return self.header[NUM_VALID] == self.header[NUM_SAMPLES]

    def sample(self, index: int) -> NDArray[Any]:
        """Read-only view of one valid sample if shapes differ; invalid once the cell is reused."""
        offset, *shape = self._extents[index].tolist()
        num_bytes = math.prod(shape) * np.dtype(self._layout.sample.dtype).itemsize
        view: NDArray[Any] = self._payload[offset : offset + num_bytes].view(self._layout.sample.dtype)
        view = view.reshape(shape)
        view.flags.writeable = False
        return view


def aligned(num_bytes: int, unit: int = LINE_BYTES) -> int:
    """`num_bytes` rounded up to a multiple of `unit`."""
    return -(-num_bytes // unit) * unit
