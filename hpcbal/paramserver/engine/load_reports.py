"""What a server has done, reported to the master now and then."""

from __future__ import annotations

from collections.abc import Callable

from hpcbal.paramserver.engine.server import Server
from hpcbal.paramserver.engine.wire import Wire
from hpcbal.paramserver.machine import messages

INTERVAL_S = 0.5
"""Between two reports."""


class LoadReports:
    """Reports the load of a server, if there was any.

    Args:
        server: whose load it is.
        wire: has counted bytes.
        send: sends a report to the master.
    """

    def __init__(self, server: Server, wire: Wire, send: Callable[[messages.ServerReport], None]) -> None:
        self._server, self._wire, self._send = server, wire, send
        self._due_s = 0.0
        self._reported = (0, 0)

    def poll(self, now_s: float) -> bool:
        """Report if it is time to; see `Reactor.add`."""
        load = self._server.load
        if now_s < self._due_s:
            return False
        self._due_s = now_s + INTERVAL_S
        if load.requests:
            before_in, before_out = self._reported
            self._reported = bytes_in, bytes_out = self._wire.bytes_in, self._wire.bytes_out
            self._send(
                messages.ServerReport(
                    bytes_in - before_in, bytes_out - before_out, load.service_s, load.requests
                )
            )
            load.service_s, load.requests = 0.0, 0
        return False
