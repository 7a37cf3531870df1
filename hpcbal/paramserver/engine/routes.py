"""What a worker pulls and pushes again and again: dense tables, as far as one server owns them.

A route names these blocks once. After that a pull or push of all of them is one short header, and what it
needs is prepared. While the ownership of blocks changes, or updates wait for each other, the server serves
requests over a route as any other request.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import HpcbalError, UserCodeError
from hpcbal.paramserver.contract import has_default_update
from hpcbal.paramserver.engine.accesses import ALL_ROWS, Pull, Push
from hpcbal.paramserver.engine.buffers import view
from hpcbal.paramserver.engine.held_block import PushNumber
from hpcbal.paramserver.engine.transport import Lane, Segments, Transfer
from hpcbal.paramserver.engine.user_app import calling
from hpcbal.paramserver.engine.wire import LANES, Frame, Kind, Sender, Wire

if TYPE_CHECKING:
    from hpcbal.paramserver.engine.server import Server


MAX_RECEIVERS = 2
"""Buffers that a route prepares for; servers use the same ones again as a rule."""


@dataclass(slots=True)
class _Receiver:
    """Receives pushes over a route into one buffer.

    Attributes:
        deltas: that lie there, in the order of the route's runs.
        generation: of the route when it was made.
    """

    transfer: Transfer
    buffer: NDArray[np.uint8]
    deltas: list[NDArray[Any]]
    generation: int | None


class _Route:
    """One worker's route.

    Attributes:
        blocks: in the order of payloads.
        num_bytes: of their values.
        generation: of the server's blocks, for which the rest holds; None: it must be prepared.
        number: of the worker's last push to all these blocks.
        answer: sends their values.
        bare_answer: sends them without a header.
        runs: tables and values of neighbours in memory, in order.
        receivers: by the identity of a buffer, which they keep.
    """

    def __init__(self, worker: int, number: int, blocks: tuple[int, ...]) -> None:
        self.worker, self.id, self.blocks = worker, number, blocks
        self.num_bytes = 0
        self.generation: int | None = None
        self.number = PushNumber(0)
        self.answer: Sender | None = None
        self.bare_answer: Transfer | None = None
        self.acknowledgement: Sender | None = None
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
        self._pulled: dict[tuple[int, ...], tuple[int, int]] = {}  # by blocks: step, and data blocks
        self._adds = has_default_update(server.app)
        wire.on(Kind.ROUTE, self._on_route)
        wire.on(Kind.PULL_ROUTE, self._on_pull)
        wire.on(Kind.PUSH_ROUTE, server.on_push)

    # Routes.

    def _on_route(self, frame: Frame) -> None:
        blocks = tuple(frame.entries[:, 0].tolist())
        self._routes[frame.origin, frame.request] = route = _Route(frame.origin, frame.request, blocks)
        for block in blocks:
            table, rows = self._server.shape_of(block)
            route.num_bytes += rows * table.row_bytes

    def _is_ready(self, route: _Route) -> bool:
        return route.generation == self._server.generation or self._prepare(route)

    def _prepare(self, route: _Route) -> bool:
        """Prepare a route; False while its blocks are not all here or differ in what is applied."""
        server = self._server
        held = [server.find(block) for block in route.blocks]
        numbers = {None if each is None else each.last(route.worker) for each in held}
        if len(numbers) != 1 or (number := numbers.pop()) is None:
            return False
        if route.is_answering:
            return False
        self._free(route)
        route.number = PushNumber(number)
        arrays: list[NDArray[Any]] = []
        for each in held:
            assert each is not None
            each.applied[route.worker] = route.number
            arrays.append(each.values)
        route.runs = _runs([server.shape_of(block)[0].name for block in route.blocks], arrays)
        values = Segments(arrays)
        route.answer = self._wire.prepare(route.worker, Kind.PULLED_ROUTE, [(route.id, 0, 0)], values)
        route.bare_answer = self._wire.transport.outgoing(route.worker, Lane.ROUTED, None, values)
        route.acknowledgement = self._wire.prepare(route.worker, Kind.APPLIED, ())
        route.generation = server.generation
        return True

    def _free(self, route: _Route) -> None:
        if route.answer is not None and route.acknowledgement is not None and route.bare_answer is not None:
            route.answer.free()
            route.bare_answer.free()
            if route.acknowledgement.is_done:
                route.acknowledgement.free()
        for receiver in route.receivers.values():
            if receiver.transfer.is_done:
                receiver.transfer.free()
        route.receivers = {}
        route.answer = route.bare_answer = route.acknowledgement = None

    def close(self) -> None:
        """Give up what is prepared; nothing may be on its way."""
        for route in self._routes.values():
            self._free(route)

    @property
    def is_sending(self) -> bool:
        """Whether any answer is on its way."""
        return any(route.is_answering for route in self._routes.values())

    def lends(self, block: int) -> bool:
        """Whether values are being sent over a route to this block."""
        return any(route.is_answering and block in route.blocks for route in self._routes.values())

    # Pulls.

    def _on_pull(self, frame: Frame) -> None:
        start_s = time.perf_counter()
        server = self._server
        id_, number, is_bare = frame.entries[0].tolist()
        route = self._routes[frame.origin, id_]
        if (
            self._is_ready(route)
            and not route.is_answering
            and route.number.number == number
            and (server.sync_blocks is None or frame.step != server.kept_step)
        ):
            if server.sync_blocks is not None:
                step, share = self._pulled.get(route.blocks, (-1, 0))
                share = frame.share if step != frame.step else share + frame.share
                self._pulled[route.blocks] = frame.step, share
            server.load.requests += 1
            self._answer(route, frame.request, bool(is_bare))
            server.load.service_s += time.perf_counter() - start_s
            return
        need = dict.fromkeys(route.blocks, number)
        server.try_pull(Pull(frame.origin, frame.request, frame.step, frame.share, need, {}))

    def _answer(self, route: _Route, request: int, is_bare: bool) -> None:
        assert route.answer is not None
        assert route.bare_answer is not None

        def sent() -> None:
            self._server.retry_all(route.blocks)

        if is_bare and self._wire.link is None:
            if route.worker != self._wire.rank:
                self._wire.bytes_out += route.num_bytes
            route.bare_answer.start(sent)
        else:
            route.answer.send(request, then=sent)

    def note_pulls(self, block: int) -> None:
        """Count at the blocks themselves what was pulled over routes to this block."""
        for blocks, (step, share) in list(self._pulled.items()):
            if block in blocks:
                del self._pulled[blocks]
                for each in blocks:
                    held = self._server.find(each)
                    if held is not None:
                        held.note_pull(step, share)

    # Pushes.

    def receive(self, frame: Frame, buffer: NDArray[np.uint8]) -> None:
        """Receive a push over a route into a buffer."""
        route = self._routes[frame.origin, int(frame.entries[0, 0])]
        self._is_ready(route)  # what the payload is received into holds for these blocks
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
        deltas, start = [], 0
        for _, values in route.runs:
            deltas.append(view(buffer, start, values.shape, values.dtype))
            start += values.nbytes
        found = route.receivers[id(buffer)] = _Receiver(transfer, buffer, deltas, route.generation)
        return found

    def _on_pushed(self, route: _Route, frame: Frame, receiver: _Receiver) -> None:
        start_s = time.perf_counter()
        server = self._server
        number = int(frame.entries[0, 1])
        if not self._may_apply(route, frame, number) or receiver.generation != route.generation:
            server.pushed(self._as_push(route, frame, receiver.buffer, number))
            return
        for (name, values), deltas in zip(route.runs, receiver.deltas, strict=True):
            if self._adds:
                np.add(values, deltas, out=values)
            elif server.failure is None:
                try:
                    with calling(server.app, f"update({name!r})"):
                        server.app.update(name, values, deltas)
                except UserCodeError as error:
                    server.failure = error
        server.give_back(receiver.buffer)
        route.number.number = number
        server.load.requests += 1
        acknowledgement = route.acknowledgement
        assert acknowledgement is not None
        if acknowledgement.is_done:
            acknowledgement.send(frame.request, 0, len(route.blocks))
        else:
            self._wire.send(route.worker, Kind.APPLIED, (), request=frame.request, share=len(route.blocks))
        server.retry_all(route.blocks)
        server.load.service_s += time.perf_counter() - start_s

    def _may_apply(self, route: _Route, frame: Frame, number: int) -> bool:
        """Whether all blocks may be changed at once: none is lent, and no pull needs them as they are."""
        server = self._server
        if not self._is_ready(route) or route.number.number != number - 1 or server.num_lent:
            return False
        if server.sync_blocks is not None:
            step, share = self._pulled.get(route.blocks, (-1, 0))
            if step != frame.step or share != server.sync_blocks:
                return False
        return not self.is_sending

    def _as_push(self, route: _Route, frame: Frame, buffer: NDArray[np.uint8], number: int) -> Push:
        entries = np.array([(block, number, ALL_ROWS) for block in route.blocks], np.int64)
        whole = Frame(
            frame.source, Kind.PUSH, frame.request, frame.origin, frame.step, 0, frame.payload_bytes, entries
        )
        return Push.parsed(whole, buffer, self._server.shape_of)


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
