"""A worker's dense tables: where they are pulled to, and the routes to their owners."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.paramserver.contract import IntArray, Update
from hpcbal.paramserver.engine.accesses import ALL_ROWS
from hpcbal.paramserver.engine.reactor import Reactor
from hpcbal.paramserver.engine.routes import address_of
from hpcbal.paramserver.engine.transport import Lane, Segments, Then, Transfer
from hpcbal.paramserver.engine.wire import LANES, Frame, Kind, Sender, Wire
from hpcbal.paramserver.store.client import Client
from hpcbal.paramserver.store.layout import Layout

KEPT_SENDERS = 4
"""Arrays of updates for which a route keeps a sender: apps use few, in turn."""


class _Route:
    """The route to one owner.

    Attributes:
        pull: asks for all its blocks.
        incoming: receives them after a header.
        bare: receives them without one.
        is_bare: whether the present pull may be answered so.
        is_only: whether it is the only one to its owner. Answers without a header do not say to which route
            they belong.
        pushes: by addresses of deltas: sends them.
        last: number of the last push that all its blocks have in common; None if they differ.
    """

    def __init__(self, number: int, owner: int, blocks: IntArray) -> None:
        self.number, self.owner, self.blocks = number, owner, blocks
        self.num_bytes = 0
        self.is_bare = False
        self.is_only = False
        self.pull: Sender
        self.incoming: Transfer
        self.bare: Transfer
        self.last: int | None = None
        self.pushes: dict[tuple[int, ...], tuple[Sender, Segments]] = {}


class DenseTables:
    """Pulls all dense tables into arrays of their own, and pushes updates of all of them at once.

    Args:
        wire, reactor: carry the frames.
        layout: of the tables.
        client: numbers the requests, and knows the owners.
        answered: called with a request and the number of its blocks that have come without a header.

    Attributes:
        blocks: of all dense tables, ascending.
        tables: by name, read-only; overwritten by the next pull.
        targets: by block, where its values belong.
    """

    def __init__(
        self,
        wire: Wire,
        reactor: Reactor,
        layout: Layout,
        client: Client,
        answered: Callable[[int, int], None],
    ) -> None:
        self._wire, self._reactor, self._layout = wire, reactor, layout
        self._client, self._answered = client, answered
        dense = [table for table in layout.tables if table.access == "dense"]
        arrays = {table.name: np.zeros((table.num_rows, table.num_columns), table.dtype) for table in dense}
        self._spans = {
            block: (table.name, slice(*layout.rows_span(block)))
            for table in dense
            for block in layout.blocks_of(table.name)
        }
        self.blocks = np.array(sorted(self._spans), np.int64)
        self.targets: dict[int, NDArray[Any]] = {
            block: arrays[name][span] for block, (name, span) in self._spans.items()
        }
        self.tables = {name: _read_only(array) for name, array in arrays.items()}
        self.num_bytes = sum(array.nbytes for array in arrays.values())
        self._routes: list[_Route] | None = None
        self._by_number: dict[int, _Route] = {}
        self._numbers = itertools.count(1)
        self._is_outdated = False
        self._is_even = True
        wire.on(Kind.PULLED_ROUTE, self._on_pulled)

    def outdate(self) -> None:
        """Make the routes anew before they are used again: owners have changed."""
        self._is_outdated = True

    def close(self) -> None:
        """Give up the routes; no pull may be on its way."""
        for route in self._routes or ():
            self._wait(route)
            route.pull.free()
            route.incoming.free()
            route.bare.free()
            for sender, _ in route.pushes.values():
                sender.free()
        self._routes = None

    def _wait(self, route: _Route) -> None:
        """Wait until nothing is on its way over a route."""
        senders = [route.pull, *(sender for sender, _ in route.pushes.values())]
        self._reactor.wait_until(lambda: all(sender.is_done for sender in senders))

    def pull(self, request: int, step: int, share: int) -> None:
        """Ask all owners for all blocks; answers without header, after `PULLED_ROUTE`, or ordinary ones."""
        wire = self._wire
        for route in self._opened():
            is_bare = wire.link is None and route.is_only
            number = self._number(route)
            if number is None:
                numbers = self._client.pushed[route.blocks].tolist()
                entries = [(b, n, ALL_ROWS) for b, n in zip(route.blocks.tolist(), numbers, strict=True)]
                wire.send(route.owner, Kind.PULL, entries, request=request, step=step, share=share)
                continue
            if not route.pull.is_done:
                self._wait(route)
            route.pull.entries[0, 1:] = number, is_bare
            route.is_bare = is_bare
            if is_bare:
                route.bare.start(partial(self._answered, request, len(route.blocks)))
            route.pull.send(request, step, share)

    def finish_pull(self, request: int) -> None:
        """All blocks that `request` asked for are here: some routes may still expect them without header."""
        for route in self._routes or ():
            if not route.bare.is_done:
                route.bare.cancel()
            elif route.is_bare and route.owner != self._wire.rank:
                self._wire.count_bare(request, route.num_bytes)
            route.is_bare = False

    def _on_pulled(self, frame: Frame) -> None:
        """Receive an answer over a route."""
        route = self._by_number[frame.first[0]]
        route.incoming.start(partial(self._answered, frame.request, len(route.blocks)))

    def may_push(self, updates: Mapping[str, Update]) -> bool:
        """Whether there are updates of all dense tables, and the numbers of their blocks fit the routes."""
        if not self.tables:
            return False
        if any(name not in updates or updates[name].rows is not None for name in self.tables):
            return False
        return all(self._number(route) is not None for route in self._opened())

    def push(self, updates: Mapping[str, Update], request: int, step: int, sent: Then) -> int:
        """Push updates of all dense tables, after `may_push` and `Client.push`.

        Args:
            sent: called for each frame whose payload is no longer needed.

        Returns: number of frames.
        """
        key = tuple(address_of(updates[name].deltas) for name in self.tables)
        routes = self._opened()
        for route in routes:
            assert route.last is not None
            sender, payload = self._sender(route, key, updates)
            sender.entries[0, 1] = route.last = route.last + 1
            sender.send(request, step, then=partial(_release, payload, sent))
        return len(routes)

    def note_uneven(self) -> None:
        """Blocks of dense tables were pushed without the others of their routes."""
        self._is_even = False

    def _number(self, route: _Route) -> int | None:
        """The number of the last push that the blocks of a route have in common; None if they differ."""
        if not self._is_even or route.last is None:
            numbers = self._client.pushed[route.blocks]
            route.last = int(numbers[0]) if (numbers == numbers[0]).all() else None
        return route.last

    def _sender(
        self, route: _Route, key: tuple[int, ...], updates: Mapping[str, Update]
    ) -> tuple[Sender, Segments]:
        """A sender of updates that lie at these addresses."""
        found = route.pushes.get(key)
        arrays = [updates[name].deltas for name in self.tables]
        if found is None:
            for old in list(route.pushes):
                if len(route.pushes) >= KEPT_SENDERS and route.pushes[old][0].is_done:
                    route.pushes.pop(old)[0].free()
            spans = [self._spans[block] for block in route.blocks.tolist()]
            pieces = [updates[name].deltas[span] for name, span in spans]
            payload = Segments(pieces)
            sender = self._wire.prepare(route.owner, Kind.PUSH_ROUTE, [(route.number, 0, 0)], payload)
            found = route.pushes[key] = sender, payload
        found[1].arrays = tuple(arrays)
        return found

    def _opened(self) -> list[_Route]:
        if self._is_outdated:
            for route in self._routes or ():
                self._wire.send(route.owner, Kind.CLOSE_ROUTE, [(route.number, 0, 0)])
            self.close()
            self._is_outdated = False
        if self._routes is None:
            self._routes = []
            for owner, blocks, _ in self._client.parts(self.blocks):
                route = _Route(next(self._numbers), owner, blocks)
                number = route.number
                self._wire.send(owner, Kind.ROUTE, [(b, 0, 0) for b in blocks.tolist()], request=number)
                route.pull = self._wire.prepare(owner, Kind.PULL_ROUTE, [(number, 0, 0)])
                payload = Segments([self.targets[block] for block in blocks.tolist()])
                route.incoming = self._wire.transport.incoming(owner, LANES[Kind.PULLED_ROUTE], payload)
                route.bare = self._wire.transport.incoming(owner, Lane.ROUTED, payload)
                route.num_bytes = payload.num_bytes
                self._routes.append(route)
            self._by_number = {route.number: route for route in self._routes}
            routes_to = Counter(route.owner for route in self._routes)
            for route in self._routes:
                route.is_only = routes_to[route.owner] == 1
        return self._routes


def _release(payload: Segments, sent: Then) -> None:
    """Let go of the arrays, so that the next updates may get their place."""
    payload.arrays = ()
    sent()


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view
