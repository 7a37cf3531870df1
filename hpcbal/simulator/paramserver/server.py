"""The owner of parameter blocks in virtual time: performs what the pure `Host` decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from hpcbal.paramserver.engine.wire import ENTRY_BYTES, HEADER_BYTES
from hpcbal.paramserver.master.messages import BlocksMoved, Report
from hpcbal.paramserver.store.moving import queue_of_link
from hpcbal.paramserver.store.server import (
    Action,
    Answer,
    Apply,
    Forward,
    Give,
    Host,
    Lending,
    Moved,
    Skip,
    Took,
)
from hpcbal.simulator.paramserver.clock import NS_PER_S, Clock
from hpcbal.simulator.paramserver.network import EAGER_BYTES, Network
from hpcbal.simulator.paramserver.units import TurnBytes, Units

COPY_S_PER_BYTE = 1e-10
"""Seconds to copy a byte of an answer. An AMD EPYC copies 64 MB at 14 GB/s, less at 40 GB/s."""

NUMBER_BYTES = 16
"""Bytes of a worker and the number of its last push, in the frame of a block that moves."""


class Requester(Protocol):
    """Who asked: gets answers."""

    def pulled(self, request: int, num_units: int, num_bytes: int) -> None:
        """Values of so many units have arrived."""

    def applied(self, request: int, num_units: int) -> None:
        """So many units of a push are in the values."""


@dataclass(slots=True, eq=False)
class Access:
    """A request in one frame to one owner.

    Attributes:
        worker, request: whose it is; `Client` numbers requests.
        numbers: by unit, of the worker's last push for a pull, of this one for a push.
        is_pull: or a push.
        sizes: of the turn.
        num_open: units of a push that are neither applied nor forwarded.
        num_applied: units to acknowledge.
    """

    worker: int
    request: int
    numbers: dict[int, int]
    is_pull: bool
    sizes: TurnBytes
    num_open: int = 0
    num_applied: int = 0

    def __post_init__(self) -> None:
        self.num_open = len(self.numbers)

    def part(self, units: Sequence[int]) -> Access:
        """Return the rest of this request, for another owner."""
        numbers = {unit: self.numbers[unit] for unit in units}
        return Access(self.worker, self.request, numbers, self.is_pull, self.sizes)

    def request_bytes(self, units: Units) -> int:
        """Bytes of the frame that asks."""
        payload = self.sizes.ids if self.is_pull else self.sizes.deltas
        header = HEADER_BYTES + ENTRY_BYTES * units.entries(self.numbers)
        return header + sum(int(payload[unit]) for unit in self.numbers)


class VirtualServer:
    """The blocks of one executor.

    Args:
        rank: this rank.
        clock, network, units: of the simulation.
        service_s_per_byte: of the processor; one request is served after the other.
        bandwidth: of its link, in bytes/s.
        workers, servers: of all ranks; filled later.
        report: sends a report to the master.
        on_block: called when a block has come.
        on_moved: called when a block that has left is there.
        has_barrier: whether the job is in `sync`.

    Attributes:
        moving: blocks that are to leave.
    """

    def __init__(
        self,
        rank: int,
        clock: Clock,
        network: Network,
        units: Units,
        service_s_per_byte: float,
        bandwidth: float,
        workers: Mapping[int, Requester],
        servers: Mapping[int, VirtualServer],
        report: Callable[[Report], None],
        on_block: Callable[[], None],
        on_moved: Callable[[], None],
        has_barrier: bool,
    ) -> None:
        self._rank, self._clock, self._network, self._units = rank, clock, network, units
        self._ns_per_byte = service_s_per_byte * NS_PER_S
        self._workers, self._servers = workers, servers
        self._report, self._on_block, self._on_moved = report, on_block, on_moved
        self._host: Host[Access] = Host(rank)
        self._lending = Lending(may_copy=not has_barrier)
        self.moving = queue_of_link(bandwidth, cuts=False)
        self._evaluated: dict[int, int] = {}  # by unit that is here, the last evaluated epoch
        self._free_ns = 0  # when the processor has served all that has come

    def begin(self) -> None:
        """Own the units that begin here."""
        own = [unit for unit, owner in enumerate(self._units.owners) if owner == self._rank]
        self._host.begin(own)
        for unit in own:
            self._evaluated[unit] = 0
            self._perform(self._host.arrived(unit))

    def take_unevaluated(self, epoch: int) -> list[int]:
        """Blocks whose terms of the objective after `epoch` are missing; from now on they are not."""
        missing = [unit for unit, evaluated in self._evaluated.items() if evaluated < epoch]
        self._evaluated.update(dict.fromkeys(missing, epoch))
        return sorted(block for unit in missing for block in self._units.members[unit])

    # Frames.

    def ask(self, access: Access) -> None:
        """A pull or a push has arrived."""
        payload = access.sizes.values if access.is_pull else access.sizes.deltas
        self._serve(sum(int(payload[unit]) for unit in access.numbers), partial(self._handle, access))

    def _handle(self, access: Access) -> None:
        if not access.is_pull:
            units, numbers = list(access.numbers), list(access.numbers.values())
            self._perform(self._host.push(access, access.worker, units, numbers))
            return
        for units, lends in self._units.parted(access.numbers):
            numbers = [access.numbers[unit] for unit in units]
            self._perform(self._host.pull(access, access.worker, units, numbers, lends))

    def _serve(self, num_bytes: int, action: Callable[[], None]) -> None:
        if not self._ns_per_byte:
            action()
            return
        self._occupy(num_bytes * self._ns_per_byte, action)

    def _occupy(self, duration_ns: float, action: Callable[[], None]) -> None:
        """Let the processor work on what has come before, then for so long on this."""
        self._free_ns = max(self._free_ns, self._clock.now_ns) + round(duration_ns)
        self._clock.at(self._free_ns, action)

    def move(self, blocks: Sequence[int], destination: int) -> None:
        """The master orders that blocks move."""
        for block in blocks:
            self.moving.add(block, destination, self._bytes_of(block))
        self.give_next()

    def give_next(self) -> None:
        """Hand over the blocks that may leave now."""
        while (piece := self.moving.next_piece()) is not None:
            self._perform(self._host.move([piece.block], piece.destination))

    def _bytes_of(self, block: int) -> int:
        return int(self._units.whole_bytes[block])

    def _on_give(self, block: int, source: int, given: Give, evaluated: int) -> None:
        self._perform(self._host.expect(block, source))
        self._evaluated[block] = evaluated
        self._perform(self._host.arrived(block, given.applied))
        self._on_block()

    def _on_taken(self, block: int, destination: int) -> None:
        self._perform(self._host.taken(block, destination))

    def _on_sent(self, units: Sequence[int]) -> None:
        self._perform(self._host.sent(units))

    # Actions.

    def _perform(self, actions: Sequence[Action[Access]]) -> None:
        for action in actions:
            match action:
                case Answer(access, units):
                    for some, lends in self._units.parted(units):
                        self._answer(access, some, lends)
                case Apply(access, units):
                    access.num_applied += len(units)
                    self._close(access, len(units))
                case Skip(access, units):
                    self._close(access, len(units))
                case Forward(access, units, destination):
                    part = access.part(units)
                    ask = partial(self._servers[destination].ask, part)
                    self._network.send(self._rank, destination, part.request_bytes(self._units), ask)
                    self._close(access, len(units))
                case Give():
                    self._give(action)
                case Took(block, source):
                    taken = partial(self._servers[source]._on_taken, block, self._rank)
                    self._network.send(self._rank, source, HEADER_BYTES + ENTRY_BYTES, taken)
                case Moved(block, destination):
                    self.moving.received(block, self._bytes_of(block))
                    self._report(BlocksMoved("parameters", (block,), destination))
                    self.give_next()
                    self._on_moved()

    def _answer(self, access: Access, units: Sequence[int], lends: bool) -> None:
        worker = self._workers[access.worker]
        num_bytes = sum(int(access.sizes.values[unit]) for unit in units)
        header = HEADER_BYTES + ENTRY_BYTES * self._units.entries(units)
        is_eager = num_bytes <= EAGER_BYTES
        is_lent = lends and not is_eager
        is_copy = is_lent and self._lending.copies(access.worker)

        def arrived() -> None:
            if is_lent:
                self._lending.taken(access.worker, num_bytes, (self._clock.now_ns - start_ns) / NS_PER_S)
                if not is_copy:
                    self._on_sent(units)
            travelled = 0 if access.worker == self._rank else header + num_bytes
            worker.pulled(access.request, len(units), travelled)

        def leave() -> None:
            self._network.send(self._rank, access.worker, header + num_bytes, arrived)
            if is_copy or (lends and is_eager):
                self._clock.after(0.0, partial(self._on_sent, units))

        start_ns = self._clock.now_ns
        if is_copy:
            self._occupy(num_bytes * COPY_S_PER_BYTE * NS_PER_S, leave)
        else:
            leave()

    def _close(self, access: Access, num_units: int) -> None:
        access.num_open -= num_units
        if not access.num_open and access.num_applied:
            worker = self._workers[access.worker]
            applied = partial(worker.applied, access.request, access.num_applied)
            self._network.send(self._rank, access.worker, HEADER_BYTES, applied)

    def _give(self, given: Give) -> None:
        block, destination = given.block, given.destination
        payload = self._bytes_of(block) + NUMBER_BYTES * len(given.applied)
        take = partial(
            self._servers[destination]._on_give, block, self._rank, given, self._evaluated.pop(block)
        )
        self._network.send(self._rank, destination, HEADER_BYTES + 2 * ENTRY_BYTES + payload, take)
