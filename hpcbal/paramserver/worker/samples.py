"""The data blocks of a worker: their samples, states, and how far each has come; and open turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpcbal.paramserver.api.batch import (
    Batch,
    DataBlock,
    DataBlocks,
    Slices,
    order_of_block,
    scatter_state,
    step_slice,
)
from hpcbal.paramserver.api.columns import IntArray, num_bytes_of
from hpcbal.paramserver.master.messages import TurnDone

Order = Callable[[int, int, int, int], IntArray]
"""Returns the order in which an epoch takes a block's samples, given (seed, epoch, block, size)."""


@dataclass(slots=True)
class Cursor:
    """How far a data block has come.

    Attributes:
        epoch: >= 0.
        at: `sync` and `stale`: the next step of the epoch; `async`: the next position in the block's order.
        evaluated: the last number of epochs after which terms of the objective were computed.
    """

    epoch: int = 0
    at: int = 0
    evaluated: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """The samples of one turn of a worker.

    Attributes:
        epoch: number of the epoch.
        step: of the epoch; in `async` always 0.
        slices: of data blocks that give samples: number of the block, first position in its order, numbers of
            samples within it.
        blocks: numbers of all data blocks that are one step further afterwards; in `async`, those that have
            then done the epoch.
        cursors: epoch and position of all blocks that the turn touches, afterwards.
    """

    epoch: int
    step: int
    slices: Sequence[tuple[int, int, IntArray]]
    blocks: tuple[int, ...]
    cursors: Mapping[int, tuple[int, int]]

    @property
    def num_samples(self) -> int:
        """Samples of the turn."""
        return sum(len(numbers) for _, _, numbers in self.slices)


class WorkerSamples:
    """The data blocks that one executor owns.

    Args:
        cut: how samples are cut into blocks.
        seed: of the run.
        steps: of an epoch (`sync` and `stale`); None: `async`.
        turn_samples: samples of a turn in `async`; ignored otherwise.
        order: of the samples of a block.
    """

    def __init__(
        self,
        cut: DataBlocks,
        seed: int,
        steps: int | None,
        turn_samples: int,
        order: Order = order_of_block,
    ) -> None:
        self._cut, self._seed, self._order_of = cut, seed, order
        self._steps = steps
        self._turn_samples = turn_samples
        self._blocks: dict[int, DataBlock] = {}
        self.cursors: dict[int, Cursor] = {}
        self._orders: dict[int, tuple[int, IntArray]] = {}  # by block: the epoch, and the order in it
        self._changed: dict[int, list[IntArray]] = {}  # of watched blocks: samples of turns since

    def __contains__(self, number: int) -> bool:
        return number in self._blocks

    @property
    def num_bytes(self) -> int:
        """Bytes of all columns and states."""
        return sum(map(bytes_of_block, self._blocks.values()))

    @property
    def are_in_memory(self) -> bool:
        """Whether all blocks are, so that several of them may be used at once."""
        return True

    def whole(self, numbers: Iterable[int] | None = None) -> Iterator[DataBlock]:
        """Whole blocks, one after the other; of all of them, in order of their numbers, or of some."""
        yield from (self._blocks[number] for number in (sorted(self._blocks) if numbers is None else numbers))

    def states(self) -> Iterator[DataBlock]:
        """All blocks, in order of their numbers, maybe without columns."""
        yield from self.whole()

    def add(self, block: DataBlock, cursor: Cursor) -> None:
        """Own a block from now on."""
        self._blocks[block.number] = block
        self.cursors[block.number] = cursor

    def watch(self, number: int) -> DataBlock:
        """Note from now on which samples of a block turns take, until it is removed; returns the block."""
        self._changed[number] = []
        return self._blocks[number]

    def remove(self, number: int) -> tuple[DataBlock, Cursor, IntArray]:
        """Give a block away.

        Returns: the block, how far it has come, and the samples that turns have taken since `watch`,
            ascending.
        """
        self._orders.pop(number, None)
        changed = np.unique(np.concatenate([*self._changed.pop(number, []), _NONE]))
        return self._blocks.pop(number), self.cursors.pop(number), changed

    def limit_within(self, limit: int) -> int:
        """Turns of steps below this may start; `limit` is what the master allows.

        A worker that owns all data blocks knows itself which steps are done, and its pulls see all earlier
        updates. So it waits for the master only between two epochs.
        """
        if self._steps is None or not limit or len(self.cursors) < self._cut.num_blocks:
            return limit
        step = min(self.steps_ahead().values())
        return max(limit, step + 1) if step % self._steps else limit

    def next_turn(self, limit: int) -> Turn | None:
        """The blocks that are furthest behind go first.

        Args:
            limit: only turns of steps below it, counted over the whole job; in `async`, of epochs below it.

        Returns: None if there is no such turn.
        """
        if not self.cursors:
            return None
        if self._steps is None:
            return self._next_of_epoch(limit)
        cursors = {number: (cursor.epoch, cursor.at) for number, cursor in self.cursors.items()}
        epoch, step = min(cursors.values())
        if epoch * self._steps + step >= limit:
            return None
        return self._turn_from(cursors, self._steps)

    def _turn_from(self, cursors: Mapping[int, tuple[int, int]], steps: int) -> Turn:
        """The turn of the blocks that are furthest behind; in `sync` and `stale`."""
        epoch, step = min(cursors.values())
        behind = sorted(number for number, cursor in cursors.items() if cursor == (epoch, step))
        slices = []
        for number in behind:
            start, stop = step_slice(self._cut, number, step, steps)
            if stop > start:
                slices.append((number, start, self._order(number, epoch)[start:stop]))
        after = (epoch, step + 1) if step + 1 < steps else (epoch + 1, 0)
        return Turn(epoch, step, slices, tuple(behind), dict.fromkeys(behind, after))

    def _next_of_epoch(self, limit: int) -> Turn | None:
        epoch = min(cursor.epoch for cursor in self.cursors.values())
        if epoch >= limit:
            return None
        left = self._turn_samples
        slices, ended, cursors = [], [], {}
        for number in sorted(self._blocks):
            cursor = self.cursors[number]
            if cursor.epoch != epoch or not left:
                continue
            size = self._cut.size(number)
            stop = min(size, cursor.at + left)
            slices.append((number, cursor.at, self._order(number, epoch)[cursor.at : stop]))
            left -= stop - cursor.at
            if stop == size:
                ended.append(number)
            cursors[number] = (epoch + 1, 0) if stop == size else (epoch, stop)
        return Turn(epoch, 0, slices, tuple(ended), cursors)

    def _order(self, number: int, epoch: int) -> IntArray:
        known = self._orders.get(number)
        if known is None or known[0] != epoch:
            size = self._cut.size(number)
            known = self._orders[number] = epoch, self._order_of(self._seed, epoch, number, size)
        return known[1]

    def finish(self, turn: Turn) -> None:
        """Move the cursors past a turn."""
        for block, _, samples in turn.slices:
            if block in self._changed:
                self._changed[block].append(samples)
        for number, after in turn.cursors.items():
            cursor = self.cursors[number]
            cursor.epoch, cursor.at = after

    def steps_ahead(self) -> dict[int, int]:
        """By block, the step at which it goes on, over the whole job; in `async`, the epoch."""
        steps = self._steps
        return {
            number: cursor.epoch if steps is None else cursor.epoch * steps + cursor.at
            for number, cursor in sorted(self.cursors.items())
        }

    def take_unevaluated(self, epoch: int) -> list[int]:
        """Blocks whose terms of the objective after `epoch` epochs are missing; from now on they are not."""
        missing = [number for number in sorted(self.cursors) if self.cursors[number].evaluated < epoch]
        for number in missing:
            self.cursors[number].evaluated = epoch
        return missing

    # What turns do with blocks; those that are on disk need more, see `SpilledSamples`.

    def expect(self, numbers: Sequence[int]) -> None:
        """Prepare for blocks that are about to be added."""

    def make_room_for_states(self) -> None:
        """`states` is about to be called, and all that it yields to be kept until `saved`."""

    def saved(self) -> None:
        """States are no longer needed."""

    def make_room(self, turn: Turn) -> None:
        """A turn is about to take its samples; the caller holds the lock of its machine."""

    def slices_of(self, turn: Turn) -> Slices:
        """The samples of a turn, where they are in memory."""
        return [(self._blocks[number], start, samples) for number, start, samples in turn.slices]

    def gathered(self, turn: Turn, batch: Batch) -> None:
        """The samples of a turn have been put together; the caller holds the lock of its machine."""

    def write_back(self, batch: Batch, turn: Turn) -> None:
        """Write the state of a turn's samples back into their blocks."""
        scatter_state(batch, self.slices_of(turn))

    def computed(self, seconds: float) -> None:
        """A turn has computed for so long, and needs its samples no more; the caller holds the lock, too."""

    def settle(self) -> bool:
        """Between two turns: move blocks to where they are to be; returns whether any had to move."""
        return False

    def close(self) -> None:
        """No block is needed any more."""


def bytes_of_block(block: DataBlock) -> int:
    """Return the bytes of a block's columns and state."""
    return num_bytes_of(block.columns) + num_bytes_of(block.state)


MAX_OPEN_TURNS = 4
"""A worker that is further ahead of its servers waits."""


class OpenTurns:
    """Reports turns in the order in which they were taken.

    Updates of a turn may be applied before those of the turn before: one without samples has none, and rows
    of a sparse table may be at another server. A data block has done a step only when it has done those
    before.

    Args:
        report: sends a report to the master.
    """

    def __init__(self, report: Callable[[TurnDone], None]) -> None:
        self._report = report
        self._open: deque[list[TurnDone]] = deque()
        self._num_begun = self._num_reported = 0
        self._after: deque[tuple[int, Callable[[], None]]] = deque()  # with the turns that must be over

    def __len__(self) -> int:
        return len(self._open)

    def begin(self) -> Callable[[TurnDone], None]:
        """A turn begins; returns what is to be called with its report, once its updates are applied."""
        slot: list[TurnDone] = []
        self._open.append(slot)
        self._num_begun += 1

        def done(report: TurnDone) -> None:
            slot.append(report)
            while self._open and self._open[0]:
                self._report(*self._open.popleft())
                self._num_reported += 1
            self._call_due()

        return done

    def after(self, action: Callable[[], None]) -> None:
        """Call `action` when the turns that have begun are reported; now, if they are."""
        self._after.append((self._num_begun, action))
        self._call_due()

    def _call_due(self) -> None:
        while self._after and self._after[0][0] <= self._num_reported:
            self._after.popleft()[1]()


_NONE: IntArray = np.empty(0, np.int64)
