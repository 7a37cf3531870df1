"""What a worker pulls and pushes again and again: dense tables, as far as one server owns them.

A route names these blocks once. After that a pull or push of all of them is one short header, and what it
needs is prepared. The host of the blocks decides as for any other request. What it decides for all blocks of
a route at once is done with what is prepared; the rest the server performs as usual.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
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
from hpcbal.paramserver.store.actions import Action, Answer, Apply
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
        generation: of the server's blocks, for which the rest holds; None: it must be prepared.
        answer: sends their values.
        bare_answer: sends them without a header.
        acknowledgement: of a push to all of them.
        runs: tables and values of neighbours in memory, in order.
        receivers: by the identity of a buffer, which they keep.
    """

    def __init__(self, number: int, bundle: Bundle) -> None:
        self.worker, self.id, self.blocks, self.bundle = bundle.worker, number, bundle.blocks, bundle
        self.num_bytes = 0
        self.generation: int | None = None
        self.answer: Sender | None = None
        self.bare_answer: Transfer | None = None
        self.acknowledgement: Sender
        self.runs: list[tuple[str, NDArray[Any]]] = []
        self.receivers: dict[int, _Receiver] = {}

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
        self._adds = has_default_update(server.app)
        wire.on(Kind.ROUTE, self._on_route)
        wire.on(Kind.PULL_ROUTE, self._on_pull)
        wire.on(Kind.PUSH_ROUTE, server.room.admit)
        server.room.on(Kind.PUSH_ROUTE, self._receive)

    # Routes.

    def _on_route(self, frame: Frame) -> None:
        bundle = Bundle(frame.origin, tuple(frame.entries[:, 0].tolist()))
        self._routes[frame.origin, frame.request] = route = _Route(frame.request, bundle)
        route.acknowledgement = self._wire.prepare(route.worker, Kind.APPLIED, ())
        for block in route.blocks:
            table, rows = self._server.shape_of(block)
            route.num_bytes += rows * table.row_bytes

    def _is_ready(self, route: _Route) -> bool:
        """Whether what is prepared for a route, whose blocks are here, may be used."""
        return route.generation == self._server.generation or self._prepare(route)

    def _prepare(self, route: _Route) -> bool:
        """Prepare a route whose blocks are here; False while an answer is on its way."""
        if route.is_answering:
            return False
        server = self._server
        self._free(route)
        arrays = [server.values(block) for block in route.blocks]
        route.runs = _runs([server.shape_of(block)[0].name for block in route.blocks], arrays)
        values = Segments(arrays)
        route.answer = self._wire.prepare(route.worker, Kind.PULLED_ROUTE, [(route.id, 0, 0)], values)
        route.bare_answer = self._wire.transport.outgoing(route.worker, Lane.ROUTED, None, values)
        route.generation = server.generation
        return True

    def _free(self, route: _Route) -> None:
        if route.answer is not None and route.bare_answer is not None:
            route.answer.free()
            route.bare_answer.free()
        for key in [key for key, each in route.receivers.items() if each.transfer.is_done]:
            route.receivers.pop(key).transfer.free()
        route.answer = route.bare_answer = None

    def close(self) -> None:
        """Give up what is prepared; nothing may be on its way."""
        for route in self._routes.values():
            self._free(route)
            route.acknowledgement.free()

    # Pulls.

    def _on_pull(self, frame: Frame) -> None:
        start_s = time.perf_counter()
        server = self._server
        id_, number, is_bare = frame.entries[0].tolist()
        route = self._routes[frame.origin, id_]
        pull = Pull(frame.origin, frame.request, frame.step, frame.share, {}, {})
        actions = server.host.pull_bundle(pull, route.bundle, number)
        if not _is_whole(actions, Answer, route):
            pull.number = dict.fromkeys(route.blocks, number)
            server.perform(actions)
        elif (
            route.is_answering
            or (server.sync_blocks is not None and frame.step == server.kept_step)
            or not self._is_ready(route)
        ):
            server.answer_whole(pull, route.blocks, partial(server.sent_bundle, route.bundle))
        else:
            if server.sync_blocks is not None:
                server.note_pull(route.blocks, frame.step, frame.share)
            self._answer(route, frame.request, bool(is_bare))
        server.load.requests += 1
        server.load.service_s += time.perf_counter() - start_s

    def _answer(self, route: _Route, request: int, is_bare: bool) -> None:
        assert route.answer is not None
        assert route.bare_answer is not None
        sent = partial(self._server.sent_bundle, route.bundle)
        if is_bare and self._wire.link is None:
            if route.worker != self._wire.rank:
                self._wire.bytes_out += route.num_bytes
            route.bare_answer.start(sent)
        else:
            route.answer.send(request, then=sent)

    # Pushes.

    def _receive(self, frame: Frame, buffer: NDArray[np.uint8]) -> None:
        """Receive a push into a buffer."""
        route = self._routes[frame.origin, int(frame.entries[0, 0])]
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
        server, blocks = self._server, route.blocks
        number = int(frame.entries[0, 1])
        push = Push(frame.origin, frame.request, frame.step, receiver.buffer)
        actions = server.host.push_bundle(push, route.bundle, number)
        if (
            _is_whole(actions, Apply, route)
            and (server.sync_blocks is None or server.have_all_pulled(blocks, frame.step))
            and self._is_ready(route)
        ):
            self._apply(route, receiver)
            if route.acknowledgement.is_done:
                route.acknowledgement.send(frame.request, 0, len(blocks))
            else:
                self._wire.send(route.worker, Kind.APPLIED, (), request=frame.request, share=len(blocks))
            server.room.give(receiver.buffer)
        else:
            push.parse([(block, number, ALL_ROWS) for block in blocks], server.shape_of)
            server.perform(actions)
        server.load.requests += 1
        server.load.service_s += time.perf_counter() - start_s

    def _apply(self, route: _Route, receiver: _Receiver) -> None:
        """Change all blocks of a route, neighbours in memory at once."""
        if receiver.generation != route.generation:
            start = 0
            receiver.deltas = []
            for _, values in route.runs:
                receiver.deltas.append(view(receiver.buffer, start, values.shape, values.dtype))
                start += values.nbytes
            receiver.generation = route.generation
        for (name, values), deltas in zip(route.runs, receiver.deltas, strict=True):
            if self._adds:
                np.add(values, deltas, out=values)
            else:
                self._server.update(name, values, None, deltas)


def _is_whole(
    actions: Sequence[Action[Pull | Push]], kind: type[Answer[Any] | Apply[Any]], route: _Route
) -> bool:
    """Whether a host asks for one thing for all blocks of a route."""
    if len(actions) != 1:
        return False
    first = actions[0]
    return isinstance(first, kind) and first.blocks is route.blocks


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
