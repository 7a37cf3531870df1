"""A worker's side of the tables: pull them into its own arrays, push updates and go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.paramserver.api.columns import IntArray
from hpcbal.paramserver.api.update import Table, Update
from hpcbal.paramserver.engine.buffers import Buffers
from hpcbal.paramserver.engine.wire import ALL_ROWS, MAX_ENTRIES, Frame, FrameKind, Segments, Wire
from hpcbal.paramserver.store.client import Client
from hpcbal.paramserver.store.layout import Layout, Ownership


@dataclass(frozen=True, slots=True, eq=False)
class _Placed:
    """Where some rows of a table are.

    Attributes:
        order: sorts the rows by block.
        blocks: that hold any of them, ascending.
        bounds: rows bounds[i]..bounds[i + 1] of the sorted ones are in blocks[i].
        places: of the sorted rows within their blocks.
    """

    order: IntArray
    blocks: list[int]
    bounds: list[int]
    places: IntArray


@dataclass(slots=True, eq=False)
class StartedPull:
    """A pull whose values may not be here yet.

    Attributes:
        needs: ids by sparse table.
        received: by table, how to put its rows in order, and the rows.
        row_bytes: of these rows.
        is_over: whether all values are here.
    """

    needs: Mapping[str, IntArray]
    received: dict[str, tuple[IntArray, NDArray[Any]]]
    row_bytes: int
    is_over: bool = False


class ParameterClient:
    """Pulls and pushes of one worker. A pull sees every earlier push of this worker.

    Args:
        wire: carries the frames.
        layout: of the tables.
        ownership: of the parameter blocks; the caller changes it when a block has moved. Requests that are on
            their way to the old owner are forwarded.
        buffers: count the rows of sparse tables that are kept here, and updates until servers have received
            them; None: nobody counts them.

    Attributes:
        num_bytes: of the dense tables, which are kept here.
        num_unsent: frames of pushes that servers have not received; the arrays of updates must not change.
    """

    def __init__(
        self,
        wire: Wire,
        layout: Layout,
        ownership: Ownership,
        buffers: Buffers | None = None,
    ) -> None:
        self._wire, self._layout = wire, layout
        self._client = Client(wire.rank, ownership, MAX_ENTRIES)
        self._pulls: dict[int, tuple[StartedPull, dict[int, NDArray[Any]]]] = {}  # and where values belong
        self._applied: dict[int, Callable[[], None]] = {}  # by push: called when all of it is applied
        self.num_unsent = 0
        self._buffers = buffers or Buffers()
        self._row_bytes = self._unsent_bytes = 0  # that the buffers count
        dense = [table for table in layout.tables if table.access == "dense"]
        arrays = {table.name: np.zeros((table.num_rows, table.num_columns), table.dtype) for table in dense}
        self._dense = {name: _read_only(array) for name, array in arrays.items()}
        self._dense_targets: dict[int, NDArray[Any]] = {
            block: arrays[table.name][slice(*layout.rows_span(block))]
            for table in dense
            for block in layout.blocks_of(table.name)
        }
        self.num_bytes = sum(array.nbytes for array in arrays.values())
        wire.on(FrameKind.PULLED, self._on_pulled)
        wire.on(FrameKind.APPLIED, self._on_applied)

    @property
    def num_unapplied(self) -> int:
        """Pushes that are on their way."""
        return self._client.num_pushes

    # Pulls.

    def start_pull(
        self, needs: Mapping[str, IntArray], step: int = 0, share: int = 0, *, keeps_dense: bool = False
    ) -> StartedPull:
        """Ask for all dense tables, and rows of sparse ones; `finish_pull` follows when it is over.

        Args:
            needs: ids by sparse table, ascending, each once.
            step: of the turn, over the whole job; in `sync`, the values are those before it.
            share: how many data blocks take the turn.
            keeps_dense: whether dense tables stay as the last pull has left them.

        Raises:
            MemoryLimitError: there is no room for the rows.
        """
        self.drop_rows()
        sparse = {name: ids for name, ids in needs.items() if len(ids)}
        row_bytes = sum(len(ids) * self._layout.table(name).row_bytes for name, ids in sparse.items())
        self._count_rows(2 * row_bytes)  # as they come, and in order
        targets = {} if keeps_dense else dict(self._dense_targets)
        places: dict[int, IntArray] = {}
        received: dict[str, tuple[IntArray, NDArray[Any]]] = {}
        for name, ids in sparse.items():
            table, placed = self._layout.table(name), self._place(name, ids)
            rows = np.empty((len(ids), table.num_columns), table.dtype)
            received[name] = placed.order, rows
            for index, block in enumerate(placed.blocks):
                span = slice(placed.bounds[index], placed.bounds[index + 1])
                targets[block], places[block] = rows[span], placed.places[span]
        pull = StartedPull(needs, received, row_bytes)
        if targets:
            request = self._client.pull(len(targets))
            self._pulls[request] = pull, targets
            self._ask(request, targets, places, step, share)
        else:
            pull.is_over = True
        return pull

    def _ask(
        self,
        request: int,
        targets: Mapping[int, NDArray[Any]],
        places: Mapping[int, IntArray],
        step: int,
        share: int,
    ) -> None:
        for owner, blocks, numbers in self._client.parts(np.array(sorted(targets), np.int64)):
            entries = [
                (block, number, len(places[block]) if block in places else ALL_ROWS)
                for block, number in zip(blocks.tolist(), numbers.tolist(), strict=True)
            ]
            wanted = [places[block] for block, _, _ in entries if block in places]
            payload = Segments(wanted) if wanted else None
            self._wire.send(owner, FrameKind.PULL, entries, payload, request, step=step, share=share)

    def finish_pull(self, pull: StartedPull) -> dict[str, NDArray[Any]]:
        """Return the values of a pull that is over.

        Returns: by table, the whole table, overwritten by the next pull, or the rows in the order of the ids.
            Rows count against the memory of this rank until `drop_rows`, or the next pull.
        """
        rows: dict[str, NDArray[Any]] = {}
        for name in pull.needs:
            table = self._layout.table(name)
            if name in pull.received:
                order, received = pull.received.pop(name)
                rows[name] = np.empty_like(received)
                rows[name][order] = received
            else:
                rows[name] = np.empty((0, table.num_columns), table.dtype)
        self._count_rows(-pull.row_bytes)
        return {**self._dense, **rows}

    def drop_rows(self) -> None:
        """The rows of the last pull are no longer needed."""
        self._count_rows(-self._row_bytes)

    def _count_rows(self, num_bytes: int) -> None:
        if num_bytes > 0:
            self._buffers.keep(num_bytes)
        else:
            self._buffers.drop(-num_bytes)
        self._row_bytes += num_bytes

    def _place(self, name: str, ids: IntArray) -> _Placed:
        blocks, places = self._layout.locate(name, ids)
        order = np.lexsort((places, blocks))
        blocks = blocks[order]
        starts = np.flatnonzero(np.diff(blocks, prepend=-1))
        return _Placed(order, blocks[starts].tolist(), [*starts.tolist(), len(ids)], places[order])

    def _on_pulled(self, frame: Frame) -> None:
        _, targets = self._pulls[frame.request]
        payload = Segments([targets[block] for block in frame.entries[:, 0].tolist()])
        self._wire.receive(frame, payload, partial(self._answered, frame.request, len(frame.entries)))

    def _answered(self, request: int, num_blocks: int) -> None:
        if self._client.answered(request, num_blocks):
            pull, _ = self._pulls.pop(request)
            pull.is_over = True

    # Pushes.

    def push(self, updates: Mapping[str, Update], then: Callable[[], None], step: int = 0) -> None:
        """Send updates, once all earlier ones have left.

        This is the back-pressure: a server without room lets a push wait at its worker, who then sends no
        further one. It also keeps servers from filling up with pushes that wait for an earlier one, which has
        no room elsewhere.

        Args:
            updates: checked. Their arrays must not change until they have left.
            then: called when all of it has been applied; at once if there is nothing to push.
            step: of the turn, over the whole job.

        Raises:
            MemoryLimitError: there is no room for the updates.
        """
        assert not self.num_unsent, "earlier updates have not left yet"
        pieces: dict[int, tuple[list[IntArray], NDArray[Any]]] = {}
        for name, update in updates.items():
            self._cut(self._layout.table(name), update, pieces)
        if not pieces:
            then()
            return
        # The app's arrays, and copies of rows in the order of blocks.
        copied = sum(update.deltas.nbytes for update in updates.values() if update.rows is not None)
        unsent_bytes = copied + sum(update.deltas.nbytes for update in updates.values())
        self._buffers.keep(unsent_bytes)
        self._unsent_bytes = unsent_bytes
        pushed = np.array(sorted(pieces), np.int64)
        request = self._client.push(pushed)
        self._applied[request] = then
        for owner, part, numbers in self._client.parts(pushed):
            entries, ids, deltas = [], [], []
            for block, number in zip(part.tolist(), numbers.tolist(), strict=True):
                places, values = pieces[block]
                entries.append((block, number, len(places[0]) if places else ALL_ROWS))
                ids += places
                deltas.append(values)
            self.num_unsent += 1
            self._wire.send(
                owner, FrameKind.PUSH, entries, Segments([*ids, *deltas]), request, step=step, then=self._sent
            )

    def _sent(self) -> None:
        self.num_unsent -= 1
        if not self.num_unsent:
            self._buffers.drop(self._unsent_bytes)
            self._unsent_bytes = 0

    def _cut(
        self, table: Table, update: Update, pieces: dict[int, tuple[list[IntArray], NDArray[Any]]]
    ) -> None:
        """Cut an update into its blocks."""
        if update.rows is None:
            for block in self._layout.blocks_of(table.name):
                pieces[block] = [], update.deltas[slice(*self._layout.rows_span(block))]
            return
        if not len(update.rows):
            return
        placed = self._place(table.name, update.rows)
        deltas = update.deltas.take(placed.order, axis=0)
        for index, block in enumerate(placed.blocks):
            span = slice(placed.bounds[index], placed.bounds[index + 1])
            pieces[block] = [placed.places[span]], deltas[span]

    def _on_applied(self, frame: Frame) -> None:
        if self._client.applied(frame.request, frame.share):
            self._applied.pop(frame.request)()


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view
