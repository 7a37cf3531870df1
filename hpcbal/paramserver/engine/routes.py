"""What a worker pulls and pushes again and again: dense tables, as far as one server owns them.

A route names these blocks once. After that a pull or push of all of them is one short header, and what it
needs is prepared. The host of the blocks decides as for any other request. What it decides for all blocks of
a route at once is done with what is prepared; the rest the server performs as usual.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import HpcbalError
from hpcbal.paramserver.contract import has_default_update
from hpcbal.paramserver.engine.accesses import ALL_ROWS, Pull, Push
from hpcbal.paramserver.engine.buffers import view
from hpcbal.paramserver.engine.server import Server
from hpcbal.paramserver.engine.transport import Lane, Segments, Transfer
from hpcbal.paramserver.engine.wire import LANES, Frame, Kind, Sender, Wire
from hpcbal.paramserver.store.actions import Apply
from hpcbal.paramserver.store.numbers import Bundle

MAX_RECEIVERS = 2
"""Buffers that a route prepares for; servers use the same ones again as a rule."""


@dataclass(slots=True)
class _Receiver:
    """Receives pushes over a route into one buffer.

    Attributes:
        deltas: that lie there, in the order of the route's runs.
        generation: of the route for which `deltas` hold.
    """

    transfer: Transfer
    buffer: NDArray[np.uint8]
    deltas: list[NDArray[Any]] = field(default_factory=list)
    generation: int | None = None


class _Route:
    """One worker's route.

    Attributes:
        blocks: in the order of payloads.
        bundle: of these blocks.
        num_bytes: of their values.
        generation: of the server's blocks, for which answers are prepared; None: they are not.
        answer: sends their values.
        bare_answer: sends them without a header.
        acknowledgement: of a push to all of them.
        runs: tables and values of neighbours in memory, in order.
        runs_generation: of the server's blocks, for which `runs` hold.
        receivers: by the identity of a buffer, which they keep.
        num_pushes: that have come over it and are not handed to the host yet.
    """

    def __init__(self, number: int, bundle: Bundle) -> None:
        self.worker, self.id, self.blocks, self.bundle = bundle.worker, number, bundle.blocks, bundle
        self.num_bytes = 0
        self.generation: int | None = None
        self.answer: Sender | None = None
        self.bare_answer: Transfer | None = None
        self.acknowledgement: Sender
        self.runs_generation: int | None = None
        self.runs: list[tuple[str, NDArray[Any]]] = []
        self.receivers: dict[int, _Receiver] = {}
        self.num_pushes = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing that is prepared for it is on its way."""
        return not self.num_pushes and not self.is_answering and self.acknowledgement.is_done

    @property
    def is_answering(self) -> bool:
        """Whether an answer is on its way, so that its blocks are lent."""
        if self.answer is None or self.bare_answer is None:
            return False
        return not (self.answer.is_done and self.bare_answer.is_done)


class Routes:
    """The routes over which workers ask one server.

    Args:
        server: whose blocks they are.
        wire: carries the frames.
    """

    def __init__(self, server: Server, wire: Wire) -> None:
        self._server, self._wire = server, wire
        self._routes: dict[tuple[int, int], _Route] = {}
        self._closed: list[_Route] = []  # that were not idle when their workers closed them
        self._adds = has_default_update(server.app)
        wire.on(Kind.ROUTE, self._on_route)
        wire.on(Kind.CLOSE_ROUTE, self._on_close)
        wire.on(Kind.PULL_ROUTE, self._on_pull)
        wire.on(Kind.PUSH_ROUTE, self._on_push)
        server.room.on(Kind.PUSH_ROUTE, self._receive)

    # Routes.

    @property
    def num_open(self) -> int:
        """Routes for which anything is prepared."""
        return len(self._routes)

    def _on_route(self, frame: Frame) -> None:
        self._free_closed()
        bundle = Bundle(frame.origin, tuple(frame.entries[:, 0].tolist()))
        self._routes[frame.origin, frame.request] = route = _Route(frame.request, bundle)
        route.acknowledgement = self._wire.prepare(route.worker, Kind.APPLIED, ())
        for block in route.blocks:
            table, rows = self._server.shape_of(block)
            route.num_bytes += rows * table.row_bytes

    def _on_close(self, frame: Frame) -> None:
        self._closed.append(self._routes[frame.origin, frame.first[0]])
        self._free_closed()

    def _free_closed(self) -> None:
        """Give up what is prepared for routes that are closed and idle."""
        idle = [route for route in self._closed if route.is_idle]
        for route in idle:
            self._free(route)
            route.acknowledgement.free()
            del self._routes[route.worker, route.id]
        self._closed = [route for route in self._closed if not route.is_idle]

    def _is_ready(self, route: _Route) -> bool:
        """Whether what is prepared for a route, whose blocks are here, may be used."""
        return route.generation == self._server.generation or self._prepare(route)

    def _prepare(self, route: _Route) -> bool:
        """Prepare a route whose blocks are here; False while an answer is on its way."""
        if route.is_answering:
            return False
        server = self._server
        self._free(route)
        values = Segments([server.values(block) for block in route.blocks])
        route.answer = self._wire.prepare(route.worker, Kind.PULLED_ROUTE, [(route.id, 0, 0)], values)
        route.bare_answer = self._wire.transport.outgoing(route.worker, Lane.ROUTED, None, values)
        route.generation = server.generation
        return True

    def _join(self, route: _Route) -> None:
        """Find what may be changed at once."""
        server = self._server
        names = [server.shape_of(block)[0].name for block in route.blocks]
        route.runs = _runs(names, [server.values(block) for block in route.blocks])
        route.runs_generation = server.generation

    def _free(self, route: _Route) -> None:
        if route.answer is not None and route.bare_answer is not None:
            route.answer.free()
            route.bare_answer.free()
        for key in [key for key, each in route.receivers.items() if each.transfer.is_done]:
            route.receivers.pop(key).transfer.free()
        route.answer = route.bare_answer = None

    def close(self) -> None:
        """Give up what is prepared; nothing may be on its way."""
        self._free_closed()
        for route in self._routes.values():
            self._free(route)
            route.acknowledgement.free()

    # Pulls.

    def _on_pull(self, frame: Frame) -> None:
        start_s = time.perf_counter()
        server = self._server
        id_, number, is_bare = frame.first
        route = self._routes[frame.origin, id_]
        if not server.host.answer_bundle(route.bundle, number):
            pull = self._as_pull(route, frame, number)
            server.perform(
                server.host.pull(pull, route.worker, list(route.blocks), list(pull.number.values()))
            )
        elif (
            route.is_answering
            or server.copies(route.worker, route.num_bytes)
            or (server.sync_blocks is not None and frame.step == server.kept_step)
            or not self._is_ready(route)
        ):
            sent = partial(server.sent_bundle, route.bundle)
            server.answer_whole(self._as_pull(route, frame, number), route.blocks, sent)
        else:
            if server.sync_blocks is not None:
                server.together.note(route.blocks, frame.step, frame.share)
            self._answer(route, frame.request, bool(is_bare))
        server.count(frame.request, start_s, is_pull=True, is_routed=True)

    def _as_pull(self, route: _Route, frame: Frame, number: int) -> Pull:
        """A pull that may be answered in parts."""
        return Pull(
            frame.origin, frame.request, frame.step, frame.share, dict.fromkeys(route.blocks, number), {}
        )

    def _answer(self, route: _Route, request: int, is_bare: bool) -> None:
        assert route.answer is not None
        assert route.bare_answer is not None
        server = self._server
        sent = server.timed(route.worker, route.num_bytes, partial(server.sent_bundle, route.bundle))
        if is_bare and self._wire.link is None:
            if route.worker != self._wire.rank:
                self._wire.bytes_out += route.num_bytes
            route.bare_answer.start(sent)
        else:
            route.answer.send(request, then=sent)

    # Pushes.

    def _on_push(self, frame: Frame) -> None:
        self._routes[frame.origin, frame.first[0]].num_pushes += 1
        self._server.room.admit(frame)

    def _receive(self, frame: Frame, buffer: NDArray[np.uint8]) -> None:
        """Receive a push into a buffer."""
        route = self._routes[frame.origin, frame.first[0]]
        found = route.receivers.get(id(buffer))
        if found is None or not found.transfer.is_done:
            found = self._receiver(route, frame.source, buffer)
        found.transfer.start(partial(self._on_pushed, route, frame, found))

    def _receiver(self, route: _Route, source: int, buffer: NDArray[np.uint8]) -> _Receiver:
        if len(route.receivers) >= MAX_RECEIVERS:
            for key in [key for key, each in route.receivers.items() if each.transfer.is_done]:
                route.receivers.pop(key).transfer.free()
        payload = Segments([buffer[: route.num_bytes]])
        transfer = self._wire.transport.incoming(source, LANES[Kind.PUSH_ROUTE], payload)
        found = route.receivers[id(buffer)] = _Receiver(transfer, buffer)
        return found

    def _on_pushed(self, route: _Route, frame: Frame, receiver: _Receiver) -> None:
        start_s = time.perf_counter()
        route.num_pushes -= 1
        server, blocks = self._server, route.blocks
        number = frame.first[1]
        if server.host.apply_bundle(route.bundle, number):
            # All blocks may be changed at once, unless a pull still needs them as they are.
            all_blocks = server.sync_blocks
            if all_blocks is None or server.together.have_all(blocks, frame.step, all_blocks):
                self._apply(route, receiver)
                if route.acknowledgement.is_done:
                    route.acknowledgement.send(frame.request, 0, len(blocks))
                else:
                    self._wire.send(route.worker, Kind.APPLIED, (), request=frame.request, share=len(blocks))
                server.room.give(receiver.buffer)
            else:
                push = self._as_push(route, frame, receiver, number)
                server.perform([Apply(push, blocks)])
        else:
            push = self._as_push(route, frame, receiver, number)
            server.perform(server.host.push(push, route.worker, list(blocks), [number] * len(blocks)))
        server.count(frame.request, start_s, is_pull=False, is_routed=True)

    def _as_push(self, route: _Route, frame: Frame, receiver: _Receiver, number: int) -> Push:
        """A push that may be applied in parts."""
        push = Push(frame.origin, frame.request, frame.step, receiver.buffer)
        push.parse([(block, number, ALL_ROWS) for block in route.blocks], self._server.shape_of)
        return push

    def _apply(self, route: _Route, receiver: _Receiver) -> None:
        """Change all blocks of a route, neighbours in memory at once."""
        if route.runs_generation != self._server.generation:
            self._join(route)
        if receiver.generation != route.runs_generation:
            start = 0
            receiver.deltas = []
            for _, values in route.runs:
                receiver.deltas.append(view(receiver.buffer, start, values.shape, values.dtype))
                start += values.nbytes
            receiver.generation = route.runs_generation
        for (name, values), deltas in zip(route.runs, receiver.deltas, strict=True):
            if self._adds:
                np.add(values, deltas, out=values)
            else:
                self._server.update(name, values, None, deltas)


def address_of(array: NDArray[Any]) -> int:
    """Where an array lies in memory."""
    address: int = array.__array_interface__["data"][0]
    return address


def _runs(names: list[str], arrays: list[NDArray[Any]]) -> list[tuple[str, NDArray[Any]]]:
    """Join arrays of one table that are neighbours in memory.

    Raises:
        HpcbalError: an array is not contiguous, which no block is.
    """
    runs: list[tuple[str, NDArray[Any]]] = []
    for name, array in zip(names, arrays, strict=True):
        if not array.flags.c_contiguous:
            raise HpcbalError(f"a block of table {name!r} is not contiguous in memory")
        if runs and runs[-1][0] == name and address_of(array) == address_of(runs[-1][1]) + runs[-1][1].nbytes:
            before = runs[-1][1]
            joined = np.lib.stride_tricks.as_strided(
                before, (len(before) + len(array), *before.shape[1:]), before.strides
            )
            runs[-1] = name, joined
        else:
            runs.append((name, array))
    return runs
