"""The data blocks of a worker, some of which are on disk and are read before their turn.

A turn takes a slice of every block. The slices of blocks on disk are read by a thread while the turn before
computes and waits, if there is room for them. What follows a turn on disk is done by the same thread, in
order: first the state that the turn has changed is written, then what needs it is read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from functools import partial

from hpcbal.paramserver.api.batch import Batch, DataBlock, DataBlocks, Slices, scatter_state
from hpcbal.paramserver.api.columns import IntArray, num_bytes_of
from hpcbal.paramserver.spilling import LocalDisk, StoredBlock, Window
from hpcbal.paramserver.worker.samples import Cursor, Turn, WorkerSamples, bytes_of_block

FEWEST_STEPS = 3
"""Fewest steps of an epoch for which blocks are rearranged: that reads and writes a block once more."""

TURNS_TO_SETTLE = 4
"""Turns between which all blocks of a job can go to disk or come back."""

Windows = dict[int, Window]


class SpilledSamples(WorkerSamples):
    """See `WorkerSamples`; jobs that share machines take steps, so there is no `async`.

    Args:
        cut, seed, steps: see `WorkerSamples`.
        disk: of the machine.
        make_room: called with bytes that are about to be taken; others give room back.
        aside: gives the lock of the machine back while files are read or written.
        on_change: called when `num_bytes` has changed.
        plan: says how many of so many blocks go to disk at once.
        on_turn: called after a turn has computed.

    Attributes:
        wanted_on_disk: blocks that are to be on disk; `settle` brings that about. None: as many as are.
        stop_s: seconds for which turns have waited for the disk.
        read_s: seconds that reading of slices has taken.
        compute_s: seconds that turns have computed.
        num_turns: that have been taken.
    """

    def __init__(
        self,
        cut: DataBlocks,
        seed: int,
        steps: int,
        disk: LocalDisk,
        make_room: Callable[[int], bool],
        aside: Callable[[], AbstractContextManager[None]],
        on_change: Callable[[], None],
        plan: Callable[[int], int],
        on_turn: Callable[[], None],
    ) -> None:
        super().__init__(cut, seed, steps, 0)
        self._num_steps = steps
        self._file = disk.open()
        self._make_room, self._aside, self._on_change, self._plan = make_room, aside, on_change, plan
        self._on_turn = on_turn
        self._to_disk: set[int] = set()
        self._stored: dict[int, StoredBlock] = {}  # on disk
        self._copies: dict[int, StoredBlock] = {}  # of blocks that are in memory again
        self._lock = threading.Lock()  # states of blocks in memory change, or go to disk
        self._thread = ThreadPoolExecutor(1, "read ahead")
        self._ahead: tuple[tuple[int, int], int, Future[Windows]] | None = None
        self._windows: Windows = {}
        self._writing: Future[None] | None = None
        self._next: Turn | None = None
        self._turn_bytes = self._window_bytes = self._whole_bytes = 0
        self.wanted_on_disk: int | None = None
        self.stop_s = self.read_s = self.compute_s = 0.0
        self.num_turns = 0

    def __contains__(self, number: int) -> bool:
        return number in self._blocks or number in self._stored

    @property
    def num_blocks(self) -> int:
        """In memory and on disk."""
        return len(self._blocks) + len(self._stored)

    @property
    def num_on_disk(self) -> int:
        """Blocks that are not in memory."""
        return len(self._stored)

    @property
    def disk_bytes(self) -> int:
        """Bytes of the blocks on disk."""
        return sum(each.num_bytes for each in self._stored.values())

    @property
    def num_bytes(self) -> int:
        ahead = 0 if self._ahead is None else self._ahead[1]
        kept = sum(each.memory_bytes for each in self._stored.values())
        return super().num_bytes + kept + self._turn_bytes + self._window_bytes + self._whole_bytes + ahead

    @property
    def block_bytes(self) -> float:
        """Mean of all blocks."""
        total = super().num_bytes + self.disk_bytes
        return total / self.num_blocks if total else 1.0

    # Blocks go to disk and come back.

    def expect(self, numbers: Sequence[int]) -> None:
        count = self._plan(len(numbers))
        self._to_disk = set(numbers[len(numbers) - count :])

    def add(self, block: DataBlock, cursor: Cursor) -> None:
        """See `WorkerSamples`; a block goes to disk at once if planned, or if no room can be made for it."""
        if block.number not in self._to_disk and self._make_room(bytes_of_block(block)):
            super().add(block, cursor)
            return
        with self._aside():
            stored = StoredBlock(self._file, block)
        self._stored[block.number] = stored
        self.cursors[block.number] = cursor

    def put_on_disk(self) -> None:
        """Give the memory of one block back; any thread that holds the machine's lock may call this."""
        with self._lock:
            number = max(self._blocks)
            block, stored = self._blocks[number], self._copies.pop(number, None)
            if stored is None:
                stored = StoredBlock(self._file, block)
            else:
                stored.store_again(block)
            self._stored[number] = stored
            del self._blocks[number]
        self._on_change()

    def _bring_back(self) -> None:
        """Read one block into memory; only the worker itself does that, between two turns."""
        number = min(self._stored)
        stored = self._stored[number]
        self._reserve_whole(stored.num_bytes)
        try:
            with self._aside():
                block = self._thread.submit(stored.whole).result()
        finally:
            self._whole_bytes = 0
        self._blocks[number] = block
        self._copies[number] = self._stored.pop(number)
        self._on_change()

    def settle(self) -> bool:
        """See `WorkerSamples`; few blocks at a time, as other workers of the job wait for the next turn."""
        most = max(1, self.num_blocks // TURNS_TO_SETTLE)
        for moved in range(most):
            wanted = self.wanted_on_disk
            if wanted is None or wanted == len(self._stored):
                self.wanted_on_disk = None
                return moved > 0
            if wanted > len(self._stored):
                self.put_on_disk()
            else:
                self._bring_back()
        return True

    @property
    def are_in_memory(self) -> bool:
        """See `WorkerSamples`."""
        return not self._stored

    def whole(self, numbers: Iterable[int] | None = None) -> Iterator[DataBlock]:
        """See `WorkerSamples`; the next block on disk is read while one is used."""
        order = sorted(self.cursors) if numbers is None else list(numbers)
        coming: Future[DataBlock] | None = None
        for index, number in enumerate(order):
            stored, block = self._stored.get(number), self._blocks.get(number)
            if stored is not None:
                self._reserve_whole(2 * stored.num_bytes)
                found = coming or self._thread.submit(stored.whole)
                with self._aside():
                    block = found.result()
                coming = None
            assert block is not None
            following = self._stored.get(order[index + 1]) if index + 1 < len(order) else None
            if coming is None and following is not None:
                coming = self._thread.submit(following.whole)
            try:
                yield block
            except GeneratorExit:
                self._whole_bytes = 0
                raise
        self._whole_bytes = 0
        self._on_change()

    def make_room_for_states(self) -> None:
        self._reserve_whole(sum(each.state_bytes for each in self._stored.values()))

    def saved(self) -> None:
        self._whole_bytes = 0
        self._on_change()

    def states(self) -> Iterator[DataBlock]:
        for number in sorted(self.cursors):
            stored = self._stored.get(number)
            if stored is None:
                yield self._blocks[number]
            else:
                yield self._thread.submit(stored.only_state).result()

    def _reserve_whole(self, num_bytes: int) -> None:
        self._make_room(max(0, num_bytes - self._whole_bytes))
        self._whole_bytes = num_bytes
        self._on_change()

    # Turns.

    def _bytes_of(self, turn: Turn) -> int:
        """Estimate the bytes of a turn's samples."""
        found = 0.0
        for number, _, samples in turn.slices:
            stored = self._stored.get(number)
            size = bytes_of_block(self._blocks[number]) if stored is None else stored.num_bytes
            found += size * len(samples) / self._cut.size(number)
        return int(found)

    def _bytes_to_read(self, turn: Turn) -> int:
        """Estimate the bytes of a turn's slices on disk, and of a rearranged block before and after."""
        found, largest = 0.0, 0
        for number, _, samples in turn.slices:
            stored = self._stored.get(number)
            if stored is None or not len(samples):
                continue
            if self._num_steps >= FEWEST_STEPS:
                found += stored.num_bytes * len(samples) / stored.size
                if stored.epoch != turn.epoch:
                    largest = max(largest, stored.num_bytes)
            else:
                found += stored.num_bytes  # what is asked for is spread over the whole block
        return int(found) + 2 * largest

    def make_room(self, turn: Turn) -> None:
        batch = self._bytes_of(turn)
        is_read = self._ahead is not None and self._ahead[0] == (turn.epoch, turn.step)
        windows = 0 if is_read else self._bytes_to_read(turn)
        self._make_room(batch + windows)
        self._turn_bytes, self._window_bytes = batch, windows
        self._on_change()

    def slices_of(self, turn: Turn) -> Slices:
        began_s = time.monotonic()
        if self._writing is not None:
            self._writing.result()
            self._writing = None
        windows: Windows = {}
        if self._ahead is not None and self._ahead[0] == (turn.epoch, turn.step):
            windows = self._ahead[2].result()
        missing = {
            number: self._stored[number]
            for number, _, _ in turn.slices
            if number in self._stored and number not in windows
        }
        if missing:
            read = partial(self._read, turn, missing, self._orders_of(turn, missing))
            windows = windows | self._thread.submit(read).result()
        # Blocks may have come back since they were read ahead.
        self._windows = windows = {n: window for n, window in windows.items() if n not in self._blocks}
        self.stop_s += time.monotonic() - began_s
        slices = []
        for number, start, samples in turn.slices:
            window = windows.get(number)
            block = self._blocks.get(number)
            if block is None:
                if window is None:  # it has gone to disk since, and may be rearranged before `write_back`
                    window = self._stored[number].window(turn.epoch, start, samples)
                slices.append((window.block, start, window.places))
            else:
                slices.append((block, start, samples))
        return slices

    def _orders_of(self, turn: Turn, numbers: Iterable[int]) -> Mapping[int, IntArray]:
        if self._num_steps < FEWEST_STEPS:
            return {}
        return {number: self._order(number, turn.epoch) for number in numbers}

    def _read(self, turn: Turn, blocks: Mapping[int, StoredBlock], orders: Mapping[int, IntArray]) -> Windows:
        """Read the slices of a turn that are on disk; in the thread."""
        began_s = time.monotonic()
        found: Windows = {}
        for number, start, samples in turn.slices:
            if number in blocks and len(samples):
                if number in orders:
                    blocks[number].rearrange(turn.epoch, orders[number])
                found[number] = blocks[number].window(turn.epoch, start, samples)
        self.read_s += time.monotonic() - began_s
        return found

    def gathered(self, turn: Turn, batch: Batch) -> None:
        self._ahead = None
        self._windows = {n: window.only_state() for n, window in self._windows.items() if window.block.state}
        self._turn_bytes = num_bytes_of(batch.columns) + num_bytes_of(batch.state)
        self._window_bytes = sum(window.num_bytes for window in self._windows.values())
        self._on_change()
        if not self._stored:
            return
        cursors = {number: (cursor.epoch, cursor.at) for number, cursor in self.cursors.items()}
        self._next = self._turn_from({**cursors, **turn.cursors}, self._num_steps)
        is_apart = self._num_steps >= FEWEST_STEPS and self._next.epoch == turn.epoch
        if is_apart or not batch.state:  # what the turn will change is not among what is read
            self._read_ahead()

    def _read_ahead(self) -> None:
        """Begin to read the slices of the next turn, if there is room for them."""
        turn, self._next = self._next, None
        blocks = {} if turn is None else {n: self._stored[n] for n, _, _ in turn.slices if n in self._stored}
        if turn is None or not blocks:
            return
        num_bytes = self._bytes_to_read(turn)
        if not self._make_room(num_bytes):
            return
        work = partial(self._read, turn, blocks, self._orders_of(turn, blocks))
        self._ahead = (turn.epoch, turn.step), num_bytes, self._thread.submit(work)
        self._on_change()

    def write_back(self, batch: Batch, turn: Turn) -> None:
        with self._lock, ExitStack() as changing:
            slices: list[tuple[DataBlock, int, IntArray]] = []
            for number, start, samples in turn.slices:
                block, window = self._blocks.get(number), self._windows.get(number)
                if block is not None:
                    slices.append((block, start, samples))
                    continue
                stored = self._stored[number]
                if window is None and stored.has_state and len(samples):  # it has gone to disk amid the turn
                    window = changing.enter_context(stored.changing(turn.epoch, start, samples))
                if window is not None:
                    slices.append((window.block, start, window.places))
            if slices:
                scatter_state(batch, slices)

    def computed(self, seconds: float) -> None:
        self.num_turns += 1
        self.compute_s += seconds
        windows, self._windows = self._windows, {}
        if windows:
            self._writing = self._thread.submit(self._write, windows)
        self._turn_bytes = self._window_bytes = 0
        self._on_change()
        if self._next is not None:
            self._read_ahead()
        self._on_turn()

    def _write(self, windows: Windows) -> None:
        for number, window in windows.items():
            self._stored[number].write_state(window)  # blocks come back later, in this thread

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._file.close()
