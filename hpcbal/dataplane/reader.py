"""A trainer rank's end of the stream: wait for positions, read them in place or copy them, release them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.comm.backoff import Backoff
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.dataplane.cell import Cell
from hpcbal.dataplane.ring import INACTIVE, NodeRing
from hpcbal.dataplane.stream import StreamPlan, round_block
from hpcbal.errors import HpcbalError
from hpcbal.events.history import Position
from hpcbal.policies.selection import Selection


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples in the order of their positions, without broken ones.

    Attributes:
        ids: int64, shape (n,).
        x: samples, shape (n, *sample shape); a list of n arrays if the spec's shape is not static. They may
            lie in the ring, and are read-only then (`StreamReader.read_selection`).
        y: labels, shape (n, *label shape).
        work: the work of the batch, in samples of mean size; by default its number of samples.
        padding_limit: how many times as long as the longest sample padding may make all samples, >= 1; inf:
            no limit.
        moments: what random operations on each sample depend on, int64, shape (n,); None: the pass.
    """

    ids: NDArray[np.int64]
    x: NDArray[Any] | list[NDArray[Any]]
    y: NDArray[Any]
    work: float = -1.0
    padding_limit: float = math.inf
    moments: NDArray[np.int64] | None = None

    @classmethod
    def of_samples(
        cls,
        ids: Sequence[int] | NDArray[np.int64],
        arrays: Sequence[NDArray[Any]],
        labels: Sequence[Any],
        sample_spec: SampleSpec,
        label_spec: LabelSpec,
    ) -> Batch:
        """Return a batch of n samples, n >= 0, that were read one by one."""
        x = np.stack(arrays) if arrays and sample_spec.is_static else [*arrays]
        y = np.array([*labels], label_spec.dtype)  # NumPy takes a tuple of labels with names for one record
        return cls(np.array(ids, np.int64), x, y)

    def __post_init__(self) -> None:
        if self.work < 0.0:
            object.__setattr__(self, "work", float(len(self.ids)))

    def __len__(self) -> int:
        return len(self.ids)


__all__ = ["Batch", "StreamReader"]

NUM_BATCHES_IN_RING = 3
"""Where batches are read in place: one in use, the next one, and one that preprocessors make meanwhile."""


class StreamReader:
    """Reads positions of the running pass, in any order above its cursor.

    What is at or above the cursor is not overwritten. So a batch read in place is valid until it is released.
    One thread may release while another one reads positions that stay above the cursor.

    Attributes:
        wait_s: seconds spent waiting for blocks so far, over all rounds.
    """

    def __init__(self, ring: NodeRing, reader_index: int, poll: Callable[[], None] | None = None) -> None:
        """Read from `ring` with the cursor `reader_index`, which no other rank uses.

        Args:
            ring: ring of this rank's node.
            reader_index: 0..num_readers-1 of the ring.
            poll: called repeatedly while waiting; an exception from it ends the wait.
        """
        self._ring = ring
        self._spec = spec = ring.spec
        # Derived sizes are computed on every access, and a read needs them thousands of times a second.
        self._blocks_per_pass = spec.blocks_per_pass
        self._block_samples = spec.block_samples
        self._max_read_samples = spec.max_read_samples
        self._is_static = spec.sample.is_static
        self._labelled = [(_read_only(cell.ids), _read_only(cell.y)) for cell in ring.cells]
        self._index = reader_index
        self._poll = poll
        self._plan: StreamPlan | None = None
        self._cursor = INACTIVE
        self.wait_s = 0.0

    def can_lend(self, num_samples: int) -> bool:
        """Whether the ring has room for steps of `num_samples` that read their batches in place.

        In a smaller ring, preprocessors would have to wait for each step to end.
        """
        size = self._spec.block_samples  # added because a batch may start inside a block
        return NUM_BATCHES_IN_RING * num_samples + size <= self._ring.num_cells * size

    def bytes_to_lend(self, num_samples: int) -> int | None:
        """Size of a ring (`dataplane.ring_bytes`) that has this room; None if a pass is too short for it.

        No ring holds much more than one pass.
        """
        num_cells = math.ceil(NUM_BATCHES_IN_RING * num_samples / self._spec.block_samples) + 1
        return num_cells * self._spec.cell_bytes if num_cells <= self._spec.most_cells else None

    def set_poll(self, poll: Callable[[], None]) -> None:
        """Call `poll` while waiting from now on, instead of the earlier one."""
        self._poll = poll

    def begin(self, plan: StreamPlan, position: Position) -> None:
        """Join a round at `position`, before its producers start.

        Args:
            plan: plan of the round.
            position: no earlier position will be read; not before block `plan.first_block`.
        """
        block = round_block(self._spec, plan.first_pass, position.pass_index, position.offset)
        assert block >= plan.first_block, f"{position} is before the first block of {plan}"
        self._plan = plan
        self._move(block)

    def read(self, pass_index: int, start: int, stop: int, out: NDArray[Any] | None = None) -> Batch:
        """Wait for positions start..stop-1 of a pass, and copy out the valid samples.

        Args:
            pass_index: a pass of the round.
            start: 0..num_positions.
            stop: start..num_positions; an empty range is an empty batch and needs no waiting.
            out: memory for the samples, shape (>= stop - start, *sample shape), which the caller uses
                repeatedly: the batch's `x` is a view of it. Fresh memory pages cost more than the copy. Only
                for static shapes.

        Raises:
            InputError: if the range does not fit in the ring.
            HpcbalError: if the range was already released, or no round is running.
        """
        return self.read_selection(pass_index, Selection(start, stop), out)

    def read_selection(
        self,
        pass_index: int,
        selection: Selection,
        out: NDArray[Any] | None = None,
        *,
        in_place: bool = False,
    ) -> Batch:
        """Wait for all positions around a selection, and copy out the valid ones of it; else as `read`.

        Args:
            pass_index: a pass of the round.
            selection: of positions 0..num_positions-1.
            out: memory for the samples, shape (>= len(selection), *sample shape), as for `read`.
            in_place: whether samples may stay in the ring: then the batch is valid until the positions are
                released, and its arrays are read-only. All samples of unequal shape stay. Samples of equal
                shape stay if they are neighbours without a hole, and the ring does not wrap between them;
                they are copied otherwise.

        Raises:
            InputError, HpcbalError: as `read`, about the range from the selection's start to its stop.
        """
        if in_place and self._is_static and selection.picked is None:
            lent = self._lend(pass_index, selection.start, selection.stop)
            if lent is not None:
                return lent
        room = len(selection)
        ids, y = np.empty(room, np.int64), self._empty_labels(room)
        x: NDArray[Any] | None = None
        if self._is_static:
            x = self._spec.empty_batch(room) if out is None else out
        samples: list[NDArray[Any]] = []
        filled = 0
        for cell, begin, first, last in self._portions(pass_index, selection.start, selection.stop):
            if selection.picked is None and cell.is_whole():
                chosen: slice | NDArray[np.int64] = slice(first, last)
                end = filled + last - first
            else:
                indices = np.arange(first, last)
                if selection.picked is not None:
                    indices = indices[selection.within(begin + first, begin + last)]
                chosen = indices = indices[cell.valid[indices]]
                end = filled + len(indices)
            ids[filled:end] = cell.ids[chosen]
            y[filled:end] = cell.y[chosen]
            if x is not None:
                x[filled:end] = cell.x[chosen]
            else:
                each = range(first, last) if isinstance(chosen, slice) else chosen.tolist()
                views = [cell.sample(i) for i in each]
                samples += views if in_place else [view.copy() for view in views]
            filled = end
        return Batch(ids[:filled], samples if x is None else x[:filled], y[:filled])

    def _lend(self, pass_index: int, start: int, stop: int) -> Batch | None:
        """Positions start..stop-1 where they lie in the ring; None if they are not one whole range."""
        ring, size = self._ring, self._block_samples
        block, skipped = self._block_of(pass_index, start), start % size
        cell, end = block % ring.num_cells, skipped + stop - start
        last_cell = cell + (end - 1) // size
        if ring.samples is None or start == stop or last_cell >= ring.num_cells:
            return None
        generation = self._check_range(start, stop, pass_index, block).generation
        for number in range(last_cell - cell + 1):
            self._await_block(generation, block + number)
            if not ring.cells[cell + number].is_whole():
                return None
        x = ring.samples[cell * size + skipped : cell * size + end]
        if cell == last_cell:
            ids, y = self._labelled[cell]
            return Batch(ids[skipped:end], x, y[skipped:end])
        each = self._labelled[cell : last_cell + 1]
        ids, y = (np.concatenate(parts)[skipped:end] for parts in zip(*each, strict=True))
        return Batch(ids, x, y)

    def count_valid(self, pass_index: int, start: int, stop: int) -> int:
        """Wait for positions start..stop-1 of a pass and count the valid ones; same errors as `read`."""
        return sum(
            last - first if cell.is_whole() else int(np.count_nonzero(cell.valid[first:last]))
            for cell, _, first, last in self._portions(pass_index, start, stop)
        )

    def valid(self, pass_index: int, selection: Selection) -> NDArray[np.int64]:
        """Wait for all positions around a selection; return the valid ones of it; same errors as `read`."""
        whole = np.zeros(selection.stop - selection.start, np.bool_)
        for cell, begin, first, last in self._portions(pass_index, selection.start, selection.stop):
            whole[begin + first - selection.start : begin + last - selection.start] = cell.valid[first:last]
        positions = selection.positions
        return positions[whole[positions - selection.start]]

    def measure(
        self, pass_index: int, start: int, stop: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Wait for positions start..stop-1 of a pass; return the samples' ids and relative sizes.

        Only for a stream of samples that differ in size.

        Returns: two arrays of shape (stop - start,); the size of a broken sample is 0.
        Raises: as `read`.
        """
        ids, sizes = np.empty(stop - start, np.int64), np.empty(stop - start)
        for cell, begin, first, last in self._portions(pass_index, start, stop):
            here = slice(begin + first - start, begin + last - start)
            ids[here] = cell.ids[first:last]
            sizes[here] = np.where(cell.valid[first:last], cell.sizes[first:last], 0.0)
        return ids, sizes

    def release(self, pass_index: int, position: int) -> None:
        """Release everything before `position` (0..num_positions) of a pass; going back has no effect."""
        plan = self._running()
        block = round_block(self._spec, plan.first_pass, pass_index, position)
        if block > self._cursor:
            self._move(block)

    def end(self) -> None:
        """Leave the round; this reader then holds no cell."""
        self._plan = None
        self._move(INACTIVE)

    def _move(self, block: int) -> None:
        self._cursor = block
        self._ring.set_cursor(self._index, block)

    def _running(self) -> StreamPlan:
        if self._plan is None:
            raise HpcbalError("the stream was read outside a round: call begin() first")
        return self._plan

    def _block_of(self, pass_index: int, position: int) -> int:
        """The block of a position, counted from the round's first pass."""
        first_pass = self._running().first_pass
        return (pass_index - first_pass) * self._blocks_per_pass + position // self._block_samples

    def _empty_labels(self, num_samples: int) -> NDArray[Any]:
        label = self._spec.label
        return np.empty((num_samples, *label.shape), label.dtype)

    def _portions(self, pass_index: int, start: int, stop: int) -> Iterator[tuple[Cell, int, int, int]]:
        """Yield the cells that hold the range as they become ready, with first position and range."""
        if start == stop:
            return
        size = self._block_samples
        block = self._block_of(pass_index, start)
        plan = self._check_range(start, stop, pass_index, block)
        for begin in range(start - start % size, stop, size):
            self._await_block(plan.generation, block)
            cell = self._ring.cells[block % self._ring.num_cells]
            yield cell, begin, max(start - begin, 0), min(stop - begin, size)
            block += 1

    def _check_range(self, start: int, stop: int, pass_index: int, block: int) -> StreamPlan:
        """Check that positions start..stop-1, from `block` on, may be read; return the running plan."""
        plan, spec = self._running(), self._spec
        if not 0 <= start < stop <= spec.num_positions:
            raise HpcbalError(f"positions {start}..{stop} of a pass of {spec.num_positions} were asked for")
        if stop - start > self._max_read_samples:
            spec.check_read(stop - start)
        if block < self._cursor:
            raise HpcbalError(
                f"position {start} of pass {pass_index} (block {block}) was read after its release "
                f"(cursor {self._cursor})"
            )
        return plan

    def _await_block(self, generation: int, block: int) -> None:
        if self._ring.has_block(generation, block):
            return
        began, backoff = time.perf_counter(), Backoff.patient()
        try:
            while not self._ring.has_block(generation, block):
                if self._poll is not None:
                    self._poll()
                backoff.wait()
        finally:
            self.wait_s += time.perf_counter() - began


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A view that users' models cannot write to."""
    view = array.view()
    view.flags.writeable = False
    return view
