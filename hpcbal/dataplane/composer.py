"""Fill a block with preprocessed samples: one at a time, or many at once if the source can do that."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.dataset import BadSample
from hpcbal.dataplane.cell import Cell
from hpcbal.dataplane.stream import StreamSpec
from hpcbal.errors import DataError

_Made = tuple[NDArray[Any], NDArray[Any]] | None
"""A sample and its label; None for a broken sample."""


class StreamSource(Protocol):
    """A source of samples for a producer; `hpcbal.data.source.PreprocessedSamples` is one."""

    def ids_of_pass(self, pass_index: int) -> NDArray[np.int64]:
        """Sample ids in the order of the pass, shape (num_positions,); the same in every process."""

    def sample(self, sample_id: int, pass_index: int, training: bool) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return one preprocessed sample and its label; raises `BadSample` if it cannot be used."""


class BlockComposer:
    """Writes samples into one block after another; a broken sample leaves a hole.

    If the source has a method `samples(ids, pass_index, training)`, which returns what `sample` returns for
    each of them, stacked, it is asked for all training samples of a block at once, and for all validation
    samples. For a stream that is sized it has `sizes_of(ids, samples)`: relative sizes > 0, shape (n,).

    If the source mixes samples (`mixes`, and `mixed(sample_id, pass_index, own, partner)`), the partner of
    each training sample is the next one of its block, and that of the last one is the first. The order of a
    pass is random, so partners are, and a block is the same wherever it is made. A sample beside a hole stays
    as it is.

    If the source has a method `copy_kept(ids, samples, labels)`, it is asked first to write all samples of a
    block at once.

    If the source has a method `ask(ids)`, it gets the ids of each block first, and none at the end;
    then `is_coming(sample_id)` says whether it is better to wait before that sample is made.

    If the source has a method `moments_of_pass(pass_index)`, and it returns numbers, shape (num_train,), they
    take the place of the pass in what training samples are made of.

    Source: torchvision's MixUp and CutMix pair the samples of a batch in the same way (by a roll by one).

    Attributes:
        samples_made: samples written so far.
        reads: samples requested from the source so far, including broken ones.
        bad: (id, where, reason) of the broken samples that were not taken yet.
    """

    def __init__(self, spec: StreamSpec, source: StreamSource) -> None:
        """Compose blocks of `spec` from `source`."""
        self._spec = spec
        self._source = source
        self._mixed = source.mixed if getattr(source, "mixes", False) else None  # type: ignore[attr-defined]
        self._moments_of = getattr(source, "moments_of_pass", None)
        self._samples = None if self._mixed is not None else getattr(source, "samples", None)
        self._sizes_of = getattr(source, "sizes_of", None) if spec.is_sized else None
        self._copy_kept = None if spec.is_sized else getattr(source, "copy_kept", None)
        self._ask = None if self._samples is not None else getattr(source, "ask", None)
        self._is_coming = None if self._ask is None else source.is_coming  # type: ignore[attr-defined]
        self._shape = spec.static_shape()
        self._dtype = np.dtype(spec.sample.dtype)
        self._pass_index = -1
        self._pass_ids = np.empty(0, np.int64)
        self._pass_moments: NDArray[np.int64] | None = None
        self._moments: list[int] = []
        self._cell: Cell | None = None
        self._block_ids = np.empty(0, np.int64)
        self._ids: list[int] = []
        self._index = 0
        self._num_train = 0
        self._first: _Made = None
        self._previous: _Made = None
        self.samples_made = 0
        self.reads = 0
        self.bad: list[tuple[int, str, str]] = []

    def begin(self, cell: Cell, generation: int, block: int, first_pass: int) -> None:
        """Start a block, counted from `first_pass`, in a free cell."""
        spec = self._spec
        passes, inside = divmod(block, spec.blocks_per_pass)
        start = inside * spec.block_samples
        if self._pass_index != first_pass + passes:
            self._pass_index = first_pass + passes
            self._pass_ids = self._source.ids_of_pass(self._pass_index)
            assert len(self._pass_ids) == spec.num_positions, (len(self._pass_ids), spec.num_positions)
            self._pass_moments = None if self._moments_of is None else self._moments_of(self._pass_index)
        ids = self._pass_ids[start : start + spec.block_samples]
        cell.begin(generation, block, ids)
        self._cell, self._block_ids, self._index = cell, ids, 0
        if self._samples is None:
            self._ids = ids.tolist()  # Python ints: each takes an eighth of NumPy's time
            self._moments = [self._pass_index] * len(ids)
            if self._pass_moments is not None:
                own = self._pass_moments[start : start + spec.block_samples].tolist()
                self._moments[: len(own)] = own
        self._num_train = spec.num_train - start
        if self._ask is not None:
            self._ask(ids.tolist())

    @property
    def is_waiting(self) -> bool:
        """Whether the next sample of the block is on its way from another node."""
        if self._is_coming is None or self._cell is None:
            return False
        return self._is_coming(self._ids[self._index])

    def step(self) -> bool:
        """Write the next sample or samples; return whether the block is finished.

        Raises:
            DataError: if a sample does not fit the stream's spec, or is larger than its share of a block.
        """
        cell = self._cell
        assert cell is not None
        if self._samples is not None:
            self._write_many(cell)
        elif self._index or not self._write_kept(cell):
            self._write_one(cell)
        if self._index < len(self._block_ids):
            return False
        cell.finish()
        self._cell = None
        if self._ask is not None:
            self._ask(())
        return True

    def _write_kept(self, cell: Cell) -> bool:
        """Write a block whose samples all lie ready in a cache; return whether it is one."""
        num = len(self._block_ids)
        if self._copy_kept is None or not cell.fill(partial(self._copy_kept, self._block_ids)):
            return False
        self.reads += num
        self.samples_made += num
        self._index = num
        return True

    def _write_one(self, cell: Cell) -> None:
        index = self._index
        sample_id = self._ids[index]
        self._index = index + 1
        self.reads += 1
        made: _Made = None
        try:
            made = self._source.sample(sample_id, self._moments[index], index < self._num_train)
        except BadSample as error:
            self.bad.append((error.sample_id, error.where, error.reason))
        if self._mixed is not None and index < self._num_train:
            self._write_pair(cell, index, made)
        elif made is not None:
            self._write(cell, index, made)

    def _write(self, cell: Cell, index: int, made: tuple[NDArray[Any], NDArray[Any]]) -> None:
        sample, label = made
        sample_id = self._ids[index]
        if sample.shape != self._shape or sample.dtype != self._dtype:
            self._check(sample_id, sample)
        cell.put(index, sample, label, 1.0 if self._sizes_of is None else self._size_of(sample_id, sample))
        self.samples_made += 1

    def _write_pair(self, cell: Cell, index: int, made: _Made) -> None:
        """Write the sample before `index`, mixed with the one just made; after the last one, that too."""
        if made is not None:  # the source may use its memory again
            made = made[0].copy(), made[1]
        if index == 0:
            self._first = made
        else:
            self._write_mixed(cell, index - 1, self._previous, made)
        self._previous = made
        if index + 1 == min(self._num_train, len(self._block_ids)):
            self._write_mixed(cell, index, made, self._first)
            self._first = self._previous = None

    def _write_mixed(self, cell: Cell, index: int, own: _Made, partner: _Made) -> None:
        if own is not None:
            assert self._mixed is not None
            self._write(cell, index, self._mixed(self._ids[index], self._moments[index], own, partner))

    def _write_many(self, cell: Cell) -> None:
        first = self._index
        training = first < self._num_train
        num = len(self._block_ids)
        last = min(self._num_train, num) if training else num
        assert self._samples is not None
        samples, labels = self._samples(self._block_ids[first:last], self._pass_index, training)
        if samples.shape != (last - first, *(self._shape or ())) or samples.dtype != self._dtype:
            raise DataError(
                f"{last - first} samples read together have shape {samples.shape} and type "
                f"{samples.dtype}, the stream takes {self._spec.sample}"
            )
        sizes = None
        if self._sizes_of is not None:
            sizes = self._sizes_of(self._block_ids[first:last], samples)
        cell.put_many(first, samples, labels, sizes)
        self.reads += last - first
        self.samples_made += last - first
        self._index = last

    def _size_of(self, sample_id: int, sample: NDArray[Any]) -> float:
        assert self._sizes_of is not None
        return float(self._sizes_of(np.array([sample_id]), [sample])[0])

    def abandon(self) -> None:
        """Drop the block that is being written."""
        self._cell = None
        if self._ask is not None:
            self._ask(())

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
