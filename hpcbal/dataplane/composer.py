"""Fill a block with preprocessed samples, one at a time."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.bad_sample import BadSample
from hpcbal.dataplane.slot import Slot
from hpcbal.dataplane.stream import StreamSpec
from hpcbal.errors import DataError


class StreamSource(Protocol):
    """What a producer asks of the samples' source; `hpcbal.data.source.SampleSource` is one."""

    def ids_of_pass(self, pass_index: int) -> NDArray[np.int64]:
        """Sample ids in the order of the pass, shape (num_positions,); the same in every process."""

    def sample(self, sample_id: int, pass_index: int, training: bool) -> tuple[NDArray[Any], NDArray[Any]]:
        """One preprocessed sample and its label; raises `BadSample` if it cannot be used."""


class BlockComposer:
    """Writes the samples of one block after the other; broken ones leave a hole.

    Attributes:
        samples_made: samples written so far.
        reads: samples asked of the source so far, broken ones included.
        bad: (id, where, reason) of the broken ones that were not taken yet.
    """

    def __init__(self, spec: StreamSpec, source: StreamSource) -> None:
        """Compose blocks of `spec` from `source`."""
        self._spec = spec
        self._source = source
        self._pass_index = -1
        self._pass_ids = np.empty(0, np.int64)
        self._slot: Slot | None = None
        self._ids: list[int] = []
        self._index = 0
        self._num_train = 0
        self.samples_made = 0
        self.reads = 0
        self.bad: list[tuple[int, str, str]] = []

    def begin(self, slot: Slot, generation: int, block: int, first_pass: int) -> None:
        """Start with a block, counted from `first_pass`, in a slot that is free."""
        spec = self._spec
        passes, inside = divmod(block, spec.blocks_per_pass)
        start = inside * spec.block_samples
        if self._pass_index != first_pass + passes:
            self._pass_index = first_pass + passes
            self._pass_ids = self._source.ids_of_pass(self._pass_index)
            assert len(self._pass_ids) == spec.num_positions, (len(self._pass_ids), spec.num_positions)
        ids = self._pass_ids[start : start + spec.block_samples]
        slot.begin(generation, block, ids)
        self._slot, self._ids, self._index = slot, ids.tolist(), 0
        self._num_train = spec.num_train - start

    def step(self) -> bool:
        """Write the next sample; returns whether the block is finished.

        Raises:
            DataError: the sample is not of the stream's spec, or larger than its share of a block.
        """
        slot, index = self._slot, self._index
        assert slot is not None
        sample_id = self._ids[index]
        self.reads += 1
        try:
            sample, label = self._source.sample(sample_id, self._pass_index, index < self._num_train)
        except BadSample as error:
            self.bad.append((error.sample_id, error.where, error.reason))
        else:
            self._check(sample_id, sample)
            slot.put(index, sample, label)
            self.samples_made += 1
        self._index = index + 1
        if self._index < len(self._ids):
            return False
        slot.finish()
        self._slot = None
        return True

    def abandon(self) -> None:
        """Drop the block that is being written."""
        self._slot = None

    def _check(self, sample_id: int, sample: NDArray[Any]) -> None:
        spec = self._spec.sample
        if not spec.admits(sample):
            raise DataError(
                f"sample {sample_id} has shape {sample.shape} and type {sample.dtype}, the stream takes "
                f"{spec}; add the operations decode, resize or normalize to preprocessing"
            )
        if sample.nbytes > spec.max_bytes:
            raise DataError(
                f"sample {sample_id} has {sample.nbytes} bytes, allowed: at most {spec.max_bytes}; raise "
                "dataplane.max_sample_bytes, or add resize or a crop to preprocessing"
            )
