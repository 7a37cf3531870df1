"""Data blocks that leave a worker: samples, the app's state of them, and their cursor.

A block moves while its worker still takes turns with it. First a copy travels in pieces, in what turns leave
free of the link. Then the worker gives the block up between two turns; what follows is only the cursor, and
the state of those samples that turns have changed since the copy began. So training waits for little, however
large the block is.

Source: [PS] Sec. 3.3.2, "Data Migration". Deviation: the paper locks a block while it is sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

from hpcbal.paramserver.api.batch import DataBlock
from hpcbal.paramserver.api.columns import IntArray
from hpcbal.paramserver.master.messages import BlocksMoved, Report
from hpcbal.paramserver.store.moving import MoveQueue, Segment
from hpcbal.paramserver.worker.samples import Cursor, OpenTurns, WorkerSamples


class Carrier(ABC):
    """Carries data blocks to other workers."""

    @abstractmethod
    def begin(self, block: DataBlock) -> int:
        """A block is to be copied from now on; returns the bytes of its content."""

    @abstractmethod
    def send(self, piece: Segment) -> None:
        """Send a piece of a copy; `DataMoves.copied` is called when it is there."""

    @abstractmethod
    def give(self, block: DataBlock, cursor: Cursor, changed: IntArray, destination: int) -> None:
        """Send what has changed of a copied block; `DataMoves.taken` is called when it is there.

        Args:
            changed: samples whose state turns have changed since `begin`, ascending.
        """


class DataMoves:
    """Decides when data blocks leave.

    Args:
        samples: the worker's blocks.
        open_turns: a block leaves when the turns that have used it are over.
        queue: of pieces to send.
        carrier: sends them.
        report: sends a report to the master.
    """

    def __init__(
        self,
        samples: WorkerSamples,
        open_turns: OpenTurns,
        queue: MoveQueue,
        carrier: Carrier,
        report: Callable[[Report], None],
    ) -> None:
        self._samples, self._open_turns, self._queue = samples, open_turns, queue
        self._carrier, self._report = carrier, report
        self._ready: dict[int, int] = {}  # copied block -> destination
        self._leaving: dict[int, int] = {}  # given up, and not yet there

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is on its way from here."""
        return self._queue.is_quiet and not self._leaving

    @property
    def has_ready(self) -> bool:
        """Whether blocks have been copied and may be given up."""
        return bool(self._ready) and not self._queue.is_held

    def move(self, blocks: tuple[int, ...], destination: int) -> None:
        """Copy blocks; `give_ready` gives them up then."""
        for number in blocks:
            self._queue.add(number, destination, self._carrier.begin(self._samples.watch(number)))
        self._send_pieces()

    def hold(self) -> None:
        """Send no more pieces and give up no block until `go_on`."""
        self._queue.hold()

    def go_on(self) -> None:
        """Send pieces again."""
        self._queue.go_on()
        self._send_pieces()

    def _send_pieces(self) -> None:
        while (piece := self._queue.next_piece()) is not None:
            self._carrier.send(piece)

    def copied(self, number: int, num_bytes: int) -> bool:
        """So many bytes of a block have arrived; returns whether the whole copy has."""
        destination = self._queue.received(number, num_bytes)
        if destination is not None:
            self._ready[number] = destination
        self._send_pieces()
        return destination is not None

    def give_ready(self) -> None:
        """Give up the blocks that have been copied; between two turns."""
        for number, destination in self._ready.items():
            block, cursor, changed = self._samples.remove(number)
            self._leaving[number] = destination
            self._open_turns.after(partial(self._carrier.give, block, cursor, changed, destination))
        self._ready = {}

    def taken(self, number: int) -> None:
        """A block has arrived at its new owner."""
        self._report(BlocksMoved("data", (number,), self._leaving.pop(number)))
