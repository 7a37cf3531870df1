"""Pulls and pushes as frames bring them to the owner of blocks."""

from __future__ import annotations

import time
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hpcbal.paramserver.engine.accesses import ALL_ROWS, Pull, Push
from hpcbal.paramserver.engine.buffers import view
from hpcbal.paramserver.engine.routes import Routes
from hpcbal.paramserver.engine.server import Server
from hpcbal.paramserver.engine.transport import Segments
from hpcbal.paramserver.engine.wire import Frame, Kind, Wire


class Requests:
    """Hands requests to a server, those over routes too.

    Args:
        server: owns the blocks.
        wire: carries the frames.
    """

    def __init__(self, server: Server, wire: Wire) -> None:
        self._server, self._wire = server, wire
        self._routes = Routes(server, wire)
        server.room.on(Kind.PUSH, self._receive)
        server.room.on(Kind.FORWARDED_PUSH, self._receive)
        wire.on(Kind.PULL, self._on_pull)
        wire.on(Kind.PUSH, server.room.admit)
        wire.on(Kind.FORWARDED_PUSH, server.room.admit_now)

    @property
    def num_routes(self) -> int:
        """Routes over which workers ask, see `Routes`."""
        return self._routes.num_open

    def close(self) -> None:
        """Give up what is prepared; nothing may be on its way."""
        self._routes.close()

    def _on_pull(self, frame: Frame) -> None:
        start_s = time.perf_counter()
        entries = frame.entries.tolist()
        number = {block: number for block, number, _ in entries}
        pull = Pull(frame.origin, frame.request, frame.step, frame.share, number, {})
        if not frame.payload_bytes:
            self._serve_pull(pull, start_s)
            return
        room = self._server.room
        buffer = room.buffers.take(frame.payload_bytes)
        ids = view(buffer, 0, (frame.payload_bytes // 8,), "int64")

        def received() -> None:
            start_s, start = time.perf_counter(), 0
            for block, _, rows in entries:
                if rows != ALL_ROWS:
                    pull.places[block] = ids[start : start + rows].copy()
                    start += rows
            room.give(buffer)
            self._serve_pull(pull, start_s)

        self._wire.receive(frame, Segments([ids]), received)

    def _serve_pull(self, pull: Pull, start_s: float) -> None:
        server = self._server
        blocks, numbers = list(pull.number), list(pull.number.values())
        server.perform(server.host.pull(pull, pull.worker, blocks, numbers, lends=not pull.places))
        server.count(pull.request, start_s, is_pull=True, is_routed=False)

    def _receive(self, frame: Frame, buffer: NDArray[np.uint8]) -> None:
        payload = Segments([buffer[: frame.payload_bytes]])
        self._wire.receive(frame, payload, partial(self._on_pushed, frame, buffer))

    def _on_pushed(self, frame: Frame, buffer: NDArray[np.uint8]) -> None:
        start_s = time.perf_counter()
        server = self._server
        push = Push(frame.origin, frame.request, frame.step, buffer)
        push.parse(frame.entries.tolist(), server.shape_of)
        blocks, numbers = list(push.number), list(push.number.values())
        server.perform(server.host.push(push, push.worker, blocks, numbers))
        server.count(push.request, start_s, is_pull=False, is_routed=False)
