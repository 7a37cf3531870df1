"""Plan a change of configuration: what is added, deleted, switched and moved, and what waits for what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hpcbal.errors import PolicyError
from hpcbal.policies.configuring.cost_model import Configuration, Machine, Role

What = Literal["data", "parameters"]


@dataclass(frozen=True, slots=True)
class BlockAssignment:
    """Which machine owns each block, and what the machines are.

    Attributes:
        roles: one per machine.
        data_owner: machine of each data block.
        parameter_owner: machine of each parameter block.
    """

    roles: tuple[Role, ...]
    data_owner: tuple[int, ...]
    parameter_owner: tuple[int, ...]

    @property
    def configuration(self) -> Configuration:
        """Roles and numbers of blocks. Raises PolicyError if they contradict each other."""
        return Configuration(self.roles, self.counts("data"), self.counts("parameters"))

    def counts(self, what: What) -> tuple[int, ...]:
        """Blocks of each machine."""
        counts = [0] * len(self.roles)
        for owner in self.owners(what):
            counts[owner] += 1
        return tuple(counts)

    def owners(self, what: What) -> tuple[int, ...]:
        """Machine of each block."""
        return self.data_owner if what == "data" else self.parameter_owner


@dataclass(frozen=True, slots=True)
class Add:
    """A machine that stood by takes up a role."""

    machine: int
    role: Role


@dataclass(frozen=True, slots=True)
class Delete:
    """A machine that owns no block any more stands by."""

    machine: int


@dataclass(frozen=True, slots=True)
class Switch:
    """A machine that owns no block of its old role takes up the other one."""

    machine: int
    role: Role


@dataclass(frozen=True, slots=True)
class Move:
    """Blocks change their owner.

    Attributes:
        what: data or parameters.
        blocks: ascending, at least one.
    """

    what: What
    blocks: tuple[int, ...]
    source: int
    destination: int


Operation = Add | Delete | Switch | Move


@dataclass(frozen=True, slots=True)
class Plan:
    """Operations, and which of them wait for which.

    Attributes:
        operations: in an order in which they could also run one after the other.
        after: for each operation the earlier ones that must be complete before it starts, ascending.
    """

    operations: tuple[Operation, ...]
    after: tuple[tuple[int, ...], ...]

    @property
    def moves(self) -> tuple[Move, ...]:
        return tuple(operation for operation in self.operations if isinstance(operation, Move))

    def ready(self, done: frozenset[int], started: frozenset[int]) -> tuple[int, ...]:
        """Operations that may start now.

        Args:
            done: operations that are complete.
            started: operations that have started, complete or not.
        """
        return tuple(i for i, needed in enumerate(self.after) if i not in started and done.issuperset(needed))


def plan_changes(current: BlockAssignment, wanted: Configuration) -> Plan:
    """The operations that turn the current configuration into the wanted one.

    A block leaves only a machine that has too many, and enters only one that has too few, so as few blocks
    move as possible. The sender and the receiver with the largest remaining changes are paired first, which
    keeps the moves few: each ends the change of one of them. A sender gives up its last blocks, by number.

    Data and parameters move at the same time. What waits:
    - a move to a machine waits until it has been added or switched,
    - a switch or a deletion waits until all blocks of the machine's old role have left it.

    A server that becomes a worker and a worker that becomes a server would wait for each other if each got
    the blocks of the other. Then parameter blocks, or else data blocks, take a way round: over a machine that
    has the right role before and after. Only these blocks move twice.

    Raises: PolicyError: numbers of machines or blocks differ, or there is no such machine.
    Source: [PS] Sec. 3.3.1, Optimization Execution.
    """
    now = current.configuration
    if len(now.roles) != len(wanted.roles):
        raise PolicyError(f"got {len(wanted.roles)} machines, the job has {len(now.roles)}")
    moves = [
        *_moves("data", current, wanted.data_blocks),
        *_moves("parameters", current, wanted.parameter_blocks),
    ]
    starts: list[Operation] = []
    for machine, (old, new) in enumerate(zip(now.roles, wanted.roles, strict=True)):
        if old == "standby" and new != "standby":
            starts.append(Add(machine, new))
    switches = [
        Switch(machine, new)
        for machine, (old, new) in enumerate(zip(now.roles, wanted.roles, strict=True))
        if old != new and "standby" not in (old, new)
    ]
    deletes = [
        Delete(machine)
        for machine, (old, new) in enumerate(zip(now.roles, wanted.roles, strict=True))
        if old != "standby" and new == "standby"
    ]
    operations = [*starts, *switches, *moves, *deletes]
    while (plan := _ordered(operations)) is None:
        operations = _with_way_round(operations, now, wanted)
    return plan


def renamed(
    current: Configuration, wanted: Configuration, machines: Sequence[Machine], fixed: Sequence[int] = ()
) -> Configuration:
    """The wanted configuration with the parts of equal machines exchanged, so that fewer blocks move.

    Among equal machines it does not matter which one gets a part. Machines keep their role where they can,
    and among those with the same role the larger parts go to the machines that own more now. For parts of
    one role this order moves the fewest blocks. Machines that take up a role are those that stand by, then
    those with the fewest blocks to give away.

    Args:
        machines: their values; equal ones may exchange parts.
        fixed: machines whose role is given; they keep their part.
    """
    data, parameters = list(wanted.data_blocks), list(wanted.parameter_blocks)
    groups: dict[Machine, list[int]] = {}
    for i, machine in enumerate(machines):
        if i not in fixed:
            groups.setdefault(machine, []).append(i)
    for members in groups.values():
        _rename(current, wanted, members, data, parameters)
    return Configuration.of_blocks(data, parameters)


def _rename(
    current: Configuration, wanted: Configuration, members: list[int], data: list[int], parameters: list[int]
) -> None:
    """Exchange the parts of some equal machines in place."""
    parts: dict[Role, list[int]] = {"worker": [], "server": [], "standby": []}
    for i in members:
        parts[wanted.roles[i]].append(wanted.data_blocks[i] + wanted.parameter_blocks[i])
    owned = {i: current.data_blocks[i] + current.parameter_blocks[i] for i in members}
    left = sorted(members, key=lambda i: (-owned[i], i))
    chosen: dict[Role, list[int]] = {}
    for role, sizes in parts.items():
        chosen[role] = [i for i in left if current.roles[i] == role][: len(sizes)]
    taken = {i for own in chosen.values() for i in own}
    # What is left changes its role: first machines on standby, then those that have least to give away.
    rest = sorted(
        (i for i in left if i not in taken), key=lambda i: (current.roles[i] != "standby", owned[i], i)
    )
    for role, sizes in parts.items():
        while len(chosen[role]) < len(sizes):
            chosen[role].append(rest.pop(0))
    for role, sizes in parts.items():
        for i, size in zip(chosen[role], sorted(sizes, reverse=True), strict=True):
            data[i] = size if role == "worker" else 0
            parameters[i] = size if role == "server" else 0


def _moves(what: What, current: BlockAssignment, wanted: tuple[int, ...]) -> list[Move]:
    """Moves of one kind of block: the largest senders and receivers first."""
    counts = current.counts(what)
    if sum(counts) != sum(wanted):
        raise PolicyError(f"got {sum(wanted)} blocks of {what}, the job has {sum(counts)}")
    blocks: dict[int, list[int]] = {machine: [] for machine in range(len(counts))}
    for block, owner in enumerate(current.owners(what)):
        blocks[owner].append(block)
    change = {i: new - old for i, (old, new) in enumerate(zip(counts, wanted, strict=True)) if new != old}
    moves = []
    while change:
        source = min(change, key=lambda i: (change[i], i))
        destination = min(change, key=lambda i: (-change[i], i))
        number = min(-change[source], change[destination])
        given = _evenly_spaced(blocks[source], number)
        blocks[source] = sorted({*blocks[source]} - {*given})
        moves.append(Move(what, tuple(given), source, destination))
        for machine, sign in ((source, 1), (destination, -1)):
            change[machine] += sign * number
            if change[machine] == 0:
                del change[machine]
    return moves


def _evenly_spaced(blocks: Sequence[int], number: int) -> list[int]:
    """So many of the blocks, from everywhere: blocks of a table are neighbours, and each table is to stay
    spread over all servers."""
    count = len(blocks)
    return [blocks[(2 * i + 1) * count // (2 * number)] for i in range(number)]


def _ordered(operations: Sequence[Operation]) -> Plan | None:
    """Sort operations so that each comes after those that it waits for; None if some wait in a circle."""
    begins = {o.machine: i for i, o in enumerate(operations) if isinstance(o, Add | Switch)}
    leaving: dict[int, set[int]] = {}
    arriving: dict[tuple[What, int, int], int] = {}
    for i, operation in enumerate(operations):
        if isinstance(operation, Move):
            leaving.setdefault(operation.source, set()).add(i)
            for block in operation.blocks:
                arriving[operation.what, operation.destination, block] = i
    needs: list[set[int]] = []
    for operation in operations:
        match operation:
            case Move():
                keys = [(operation.what, operation.source, block) for block in operation.blocks]
                needed = {arriving[key] for key in keys if key in arriving}
                if operation.destination in begins:
                    needed.add(begins[operation.destination])
            case Switch() | Delete():
                needed = leaving.get(operation.machine, set())
            case Add():
                needed = set()
        needs.append(needed)
    place: dict[int, int] = {}
    waiting = list(range(len(operations)))
    while waiting:
        free = [i for i in waiting if all(j in place for j in needs[i])]
        if not free:
            return None
        place |= {i: len(place) + k for k, i in enumerate(free)}
        waiting = [i for i in waiting if i not in place]
    return Plan(
        tuple(operations[i] for i in place),
        tuple(tuple(sorted(place[j] for j in needs[i])) for i in place),
    )


def _with_way_round(
    operations: Sequence[Operation], now: Configuration, wanted: Configuration
) -> list[Operation]:
    """Lead the blocks that one switching machine gives to others over a machine that does not switch.

    Raises: PolicyError: there is none.
    """
    switching = {operation.machine for operation in operations if isinstance(operation, Switch)}
    roles: tuple[tuple[What, Role], ...] = (("parameters", "server"), ("data", "worker"))
    for what, role in roles:
        between = [
            move
            for move in operations
            if isinstance(move, Move)
            and move.what == what
            and move.source in switching
            and move.destination in switching
        ]
        stays = [
            i
            for i, (old, new) in enumerate(zip(now.roles, wanted.roles, strict=True))
            if new == role and old in (role, "standby")
        ]
        if between and stays:
            counts = {move.source: 0 for move in between}
            for move in between:
                counts[move.source] += len(move.blocks)
            source = min(counts, key=lambda i: (counts[i], i))
            changed: list[Operation] = []
            for operation in operations:
                if isinstance(operation, Move) and operation in between and operation.source == source:
                    changed.append(Move(what, operation.blocks, source, stays[0]))
                    changed.append(Move(what, operation.blocks, stays[0], operation.destination))
                else:
                    changed.append(operation)
            return changed
    raise PolicyError(
        "the change would leave no worker or no server on the way: every worker becomes a server and every "
        "server a worker; keep one of them, or change in two steps"
    )
