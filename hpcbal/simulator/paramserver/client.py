"""A worker's pulls and pushes in virtual time: sends what the pure `Client` asks of owners."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from hpcbal.paramserver.store.client import Client, Part
from hpcbal.paramserver.store.layout import Ownership
from hpcbal.simulator.paramserver.clock import Clock
from hpcbal.simulator.paramserver.network import EAGER_BYTES, Network
from hpcbal.simulator.paramserver.server import Access, VirtualServer
from hpcbal.simulator.paramserver.units import TurnBytes, Units


class WorkerClient(Protocol):
    """A worker's pulls and pushes.

    Attributes:
        ownership: of parameter blocks.
        num_bytes: of requests to other ranks, and of values that came from them, headers included.
        num_pulls: pulls that have not been answered in full.
        num_unsent: frames of pushes that servers have not received.
        num_unapplied: pushes that have not been applied in full.
    """

    ownership: Ownership
    num_bytes: int

    @property
    def num_pulls(self) -> int: ...

    @property
    def num_unsent(self) -> int: ...

    @property
    def num_unapplied(self) -> int: ...

    def pull(self, num_samples: int, *, keeps_dense: bool = False) -> None:
        """Ask for what a turn of so many samples needs, or for its rows of sparse tables only."""

    def push(self, sizes: TurnBytes, then: Callable[[], None]) -> None:
        """Send updates of these sizes; `then` is called when all of them have been applied."""


class VirtualClient:
    """The pulls and pushes of one worker, frame by frame; see `WorkerClient`.

    Args:
        rank: this rank.
        clock, network, units: of the simulation.
        servers: of all ranks; filled later.
        on_event: called after each frame that concerns this worker.
    """

    def __init__(
        self,
        rank: int,
        clock: Clock,
        network: Network,
        units: Units,
        servers: Mapping[int, VirtualServer],
        on_event: Callable[[], None],
    ) -> None:
        self._rank, self._clock, self._network, self._units = rank, clock, network, units
        self._servers, self._on_event = servers, on_event
        self.ownership = Ownership(units.owners)
        self._client = Client(rank, self.ownership)
        self._applied: dict[int, Callable[[], None]] = {}  # by push: called when all of it is applied
        self.num_bytes = self.num_unsent = 0

    @property
    def num_unapplied(self) -> int:
        """See `WorkerClient`."""
        return self._client.num_pushes

    @property
    def num_pulls(self) -> int:
        """See `WorkerClient`."""
        return self._client.num_pulls

    def pull(self, num_samples: int, *, keeps_dense: bool = False) -> None:
        """See `WorkerClient`."""
        sizes = self._units.turn_bytes(num_samples)
        units = self._units.sparse if keeps_dense else self._units.numbers
        wanted = units[sizes.values[units] > 0]
        if len(wanted):
            request = self._client.pull(len(wanted))
            for part in self._client.parts(wanted):
                self._send(part, Access(self._rank, request, _numbers(part), True, sizes))

    def push(self, sizes: TurnBytes, then: Callable[[], None]) -> None:
        """See `WorkerClient`."""
        changed = self._units.numbers[sizes.deltas > 0]
        if not len(changed):
            then()
            return
        request = self._client.push(changed)
        self._applied[request] = then
        for part in self._client.parts(changed):
            num_bytes = self._send(part, Access(self._rank, request, _numbers(part), False, sizes))
            if num_bytes > EAGER_BYTES:
                self.num_unsent += 1

    def _send(self, part: Part, access: Access) -> int:
        server, num_bytes = self._servers[part.owner], access.request_bytes(self._units)
        holds_back = not access.is_pull and num_bytes > EAGER_BYTES

        def arrived() -> None:
            if holds_back:
                self.num_unsent -= 1
            server.ask(access)
            if holds_back:
                self._on_event()

        handle = arrived if holds_back else partial(server.ask, access)
        self._network.send(self._rank, part.owner, num_bytes, handle)
        if part.owner != self._rank:
            self.num_bytes += num_bytes
        return num_bytes

    def pulled(self, request: int, num_units: int, num_bytes: int) -> None:
        """Values of so many units have arrived, and so many bytes from another rank."""
        self.num_bytes += num_bytes
        self._client.answered(request, num_units)
        self._on_event()

    def applied(self, request: int, num_units: int) -> None:
        """So many units of a push are in the values."""
        if self._client.applied(request, num_units):
            self._applied.pop(request)()
        self._on_event()


def _numbers(part: Part) -> dict[int, int]:
    return dict(zip(part.blocks.tolist(), part.numbers.tolist(), strict=True))
