"""A worker's side of the tables: pull them into its own arrays, push updates and go on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.paramserver.contract import IntArray, Table, Update
from hpcbal.paramserver.engine.accesses import ALL_ROWS
from hpcbal.paramserver.engine.dense import DenseTables, by_owner
from hpcbal.paramserver.engine.reactor import Reactor
from hpcbal.paramserver.engine.transport import Segments
from hpcbal.paramserver.engine.wire import Frame, Kind, Wire
from hpcbal.paramserver.store.layout import Layout


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


@dataclass(slots=True)
class _Pull:
    """A pull that is on its way.

    Attributes:
        targets: by block, where its values belong.
    """

    targets: dict[int, NDArray[Any]]
    num_left: int

    def count(self, num_blocks: int) -> None:
        """So many blocks have come."""
        self.num_left -= num_blocks


@dataclass(slots=True)
class _Push:
    """A push that is on its way.

    Attributes:
        num_left: blocks that have not been applied yet.
    """

    num_left: int
    then: Callable[[], None]


class ParameterClient:
    """Pulls and pushes of one worker. A pull sees every earlier push of this worker.

    Args:
        wire, reactor: carry the frames; `pull` drives the reactor until the values are here.
        layout: of the tables.
        owners: of each parameter block, shape (num_blocks,); the caller changes it when a block has moved,
            and calls `owners_changed`.
        pushed: numbers of this worker's last pushes by block, from a checkpoint; None: it has not pushed yet.
    """

    def __init__(
        self,
        wire: Wire,
        reactor: Reactor,
        layout: Layout,
        owners: IntArray,
        pushed: IntArray | None = None,
    ) -> None:
        self._wire, self._reactor, self._layout = wire, reactor, layout
        self._owners = owners
        self.pushed = np.zeros(len(owners), np.int64) if pushed is None else pushed.copy()
        self._numbers = itertools.count(1)
        self._pulls: dict[int, _Pull] = {}
        self._pushes: dict[int, _Push] = {}
        self._num_unsent = 0
        self._dense = DenseTables(wire, reactor, layout, owners, self.pushed)
        wire.on(Kind.PULLED, self._on_pulled)
        wire.on(Kind.PULLED_ROUTE, self._on_pulled_route)
        wire.on(Kind.APPLIED, self._on_applied)

    @property
    def num_bytes(self) -> int:
        """Of the dense tables that are kept here."""
        return self._dense.num_bytes

    @property
    def num_unapplied(self) -> int:
        """Pushes that are on their way."""
        return len(self._pushes)

    def owners_changed(self) -> None:
        """Send requests to the new owners from now on; those on their way are forwarded."""
        self._dense.outdate()

    def close(self) -> None:
        """Give up what is prepared; no pull or push may be on its way."""
        self._dense.close()

    # Pulls.

    def pull(self, needs: Mapping[str, IntArray], step: int = 0, share: int = 0) -> dict[str, NDArray[Any]]:
        """Pull all dense tables, and rows of sparse ones.

        Args:
            needs: ids by sparse table, ascending, each once.
            step: of the turn, over the whole job; in `sync`, the values are those before it.
            share: how many data blocks take the turn.

        Returns: by table, the whole table, overwritten by the next pull, or the rows in the order of the ids.
        """
        request = next(self._numbers)
        pull = self._pulls[request] = _Pull(self._dense.targets, len(self._dense.targets))
        self._dense.pull(request, step, share, pull.count)
        rows: dict[str, NDArray[Any]] = {}
        finish: list[Callable[[], None]] = []
        sparse = {name: ids for name, ids in needs.items() if len(ids)}
        if sparse:
            self._send_sparse(request, step, pull, sparse, rows, finish)
        self._reactor.wait_until(lambda: not pull.num_left)
        del self._pulls[request]
        self._dense.finish_pull()
        for put in finish:
            put()
        for name in needs.keys() - sparse.keys():
            table = self._layout.table(name)
            rows[name] = np.empty((0, table.num_columns), table.dtype)
        return {**self._dense.tables, **rows}

    def _send_sparse(
        self,
        request: int,
        step: int,
        pull: _Pull,
        needs: Mapping[str, IntArray],
        rows: dict[str, NDArray[Any]],
        finish: list[Callable[[], None]],
    ) -> None:
        """Ask for rows; `finish` puts them in order when they are here."""
        targets: dict[int, NDArray[Any]] = {}
        places: dict[int, IntArray] = {}
        for name, ids in needs.items():
            table, placed = self._layout.table(name), self._place(name, ids)
            received = np.empty((len(ids), table.num_columns), table.dtype)
            ordered = rows[name] = np.empty_like(received)
            for index, block in enumerate(placed.blocks):
                span = slice(placed.bounds[index], placed.bounds[index + 1])
                targets[block], places[block] = received[span], placed.places[span]
            finish.append(partial(_put, ordered, placed.order, received))
        pull.targets = {**pull.targets, **targets}
        pull.num_left += len(targets)
        for owner, blocks in by_owner(self._owners, np.array(sorted(targets), np.int64)):
            entries = [(b, int(self.pushed[b]), len(places[b])) for b in blocks.tolist()]
            payload = Segments([places[b] for b in blocks.tolist()])
            self._wire.send(owner, Kind.PULL, entries, payload, request, step=step)

    def _place(self, name: str, ids: IntArray) -> _Placed:
        blocks, places = self._layout.locate(name, ids)
        order = np.lexsort((places, blocks))
        blocks = blocks[order]
        starts = np.flatnonzero(np.diff(blocks, prepend=-1))
        return _Placed(order, blocks[starts].tolist(), [*starts.tolist(), len(ids)], places[order])

    def _on_pulled(self, frame: Frame) -> None:
        pull = self._pulls[frame.request]
        payload = Segments([pull.targets[block] for block in frame.entries[:, 0].tolist()])

        def received() -> None:
            pull.num_left -= len(frame.entries)

        self._wire.receive(frame, payload, received)

    def _on_pulled_route(self, frame: Frame) -> None:
        pull = self._pulls[frame.request]

        def received() -> None:
            pull.num_left -= num_blocks

        num_blocks = self._dense.receive(frame, received)

    # Pushes.

    def push(self, updates: Mapping[str, Update], then: Callable[[], None], step: int = 0) -> None:
        """Send updates; returns when all earlier ones have left.

        This is the back-pressure: a server without room lets a push wait at its worker, who then sends no
        further one. It also keeps servers from filling up with pushes that wait for an earlier one, which has
        no room elsewhere.

        Args:
            updates: checked. Their arrays must not change until `wait_sent` has returned.
            then: called when all of it has been applied; at once if there is nothing to push.
            step: of the turn, over the whole job.
        """
        self.wait_sent()
        request = next(self._numbers)
        num_dense, num_frames = self._dense.push(updates, request, step, self._sent)
        self._num_unsent += num_frames
        pieces: dict[int, tuple[list[IntArray], NDArray[Any]]] = {}
        for name, update in updates.items():
            if name in self._dense.tables:
                if num_dense:
                    continue
                self._dense.note_uneven()
            self._cut(self._layout.table(name), update, pieces)
        if not pieces and not num_dense:
            then()
            return
        self._pushes[request] = _Push(num_dense + len(pieces), then)
        if not pieces:
            return
        blocks = np.array(sorted(pieces), np.int64)
        self.pushed[blocks] += 1
        for owner, part in by_owner(self._owners, blocks):
            entries, ids, deltas = [], [], []
            for block in part.tolist():
                places, values = pieces[block]
                entries.append((block, int(self.pushed[block]), len(places[0]) if places else ALL_ROWS))
                ids += places
                deltas.append(values)
            self._num_unsent += 1
            self._wire.send(
                owner, Kind.PUSH, entries, Segments([*ids, *deltas]), request, step=step, then=self._sent
            )

    def _sent(self) -> None:
        self._num_unsent -= 1

    def wait_sent(self) -> None:
        """Wait until servers have received all that was pushed; then its arrays may change."""
        if self._num_unsent:
            self._reactor.wait_until(lambda: not self._num_unsent)

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
        push = self._pushes[frame.request]
        push.num_left -= frame.share
        if not push.num_left:
            del self._pushes[frame.request]
            push.then()


def _put(target: NDArray[Any], places: IntArray, rows: NDArray[Any]) -> None:
    target[places] = rows
