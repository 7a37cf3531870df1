"""Workers pull from and push to servers over loopback, one step at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hpcbal.paramserver.api.app import App
from hpcbal.paramserver.api.batch import Batch
from hpcbal.paramserver.api.update import Parameters, Table, Update, Updates
from hpcbal.paramserver.engine.buffers import SMALLEST, Buffers, MachineMemory, MemoryLimitError
from hpcbal.paramserver.engine.client import ParameterClient
from hpcbal.paramserver.engine.held_block import allocate
from hpcbal.paramserver.engine.loopback_transport import LoopbackTransport
from hpcbal.paramserver.engine.parameter_moves import ParameterMoves
from hpcbal.paramserver.engine.server import Pull, Server
from hpcbal.paramserver.engine.wire import FrameKind, Wire
from hpcbal.paramserver.master.messages import BlocksMoved
from hpcbal.paramserver.store.layout import Layout, Ownership
from hpcbal.paramserver.store.moving import MoveQueue

DENSE = Table("dense", 10, 3)
SPARSE = Table("sparse", 100, 2, "float32", "sparse")


class Tables(App):
    """Two tables, and no model."""

    def __init__(self) -> None:
        pass

    def tables(self) -> Sequence[Table]:
        return DENSE, SPARSE

    def compute(self, batch: Batch, parameters: Parameters) -> Updates:
        raise NotImplementedError

    def objective(self, batch: Batch, parameters: Parameters) -> Mapping[str, float]:
        raise NotImplementedError

    def metrics(self, sums: Mapping[str, float]) -> Mapping[str, float]:
        raise NotImplementedError


class Cluster:
    """Servers 1 and 2, workers 3 and 4, all in one thread: who waits lets the others work."""

    def __init__(
        self,
        limit_bytes: int | None = None,
        sync_blocks: int | None = None,
        memory: MachineMemory | None = None,
    ) -> None:
        self.layout = Layout((DENSE, SPARSE), (5, 7))
        self.owners = 1 + np.arange(self.layout.num_blocks) % 2
        self.wires = [Wire(transport) for transport in LoopbackTransport.connect(5)]
        self.moved: list[tuple[tuple[int, ...], int]] = []
        self.under_way: set[int] = set()  # blocks that have an order to move
        self.buffers = {rank: Buffers(limit_bytes) for rank in (1, 2)}
        self.kept = {rank: memory.open() if memory else Buffers(limit_bytes) for rank in (3, 4)}
        self.servers: dict[int, Server] = {}
        self.moves: dict[int, ParameterMoves] = {}
        for rank, buffers in self.buffers.items():
            wire = self.wires[rank]
            self.servers[rank] = server = Server(wire, Tables(), self.layout.shape_of, buffers, sync_blocks)
            self.moves[rank] = moves = ParameterMoves(
                server, wire, MoveQueue(100, None), self.note_moved, ignore
            )
            wire.on(
                FrameKind.TAKEN,
                lambda frame, moves=moves: moves.on_taken(int(frame.entries[0, 0]), frame.source),
            )
            server.begin(np.flatnonzero(self.owners == rank).tolist())
        for owner, server in self.servers.items():
            for block, values, release in allocate(
                self.layout, np.flatnonzero(self.owners == owner).tolist()
            ):
                server.add(block, values, release)
        self.clients: dict[int, ParameterClient] = {}
        self.ownerships: dict[int, Ownership] = {}
        for rank in (3, 4):
            self.ownerships[rank] = Ownership(self.owners)
            self.clients[rank] = ParameterClient(
                self.wires[rank], self.layout, self.ownerships[rank], buffers=self.kept[rank]
            )
        for wire in self.wires:
            wire.open()

    def note_moved(self, report: BlocksMoved) -> None:
        self.moved.append((report.blocks, report.destination))
        self.under_way.difference_update(report.blocks)

    def pull(self, rank: int, needs: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Pull, and let all work until the values are here and updates have left."""
        client = self.clients[rank]
        pull = client.start_pull(needs)
        self.wait_until(lambda: pull.is_over)
        return client.finish_pull(pull)

    def push(self, rank: int, updates: Mapping[str, Update], then: Callable[[], None]) -> None:
        """Push, after earlier updates have left."""
        self.wait_until(lambda: not self.clients[rank].num_unsent)
        self.clients[rank].push(updates, then)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.poll()

    def poll(self) -> bool:
        return sum(wire.transport.poll() for wire in self.wires) > 0

    def note_slow(self, worker: int) -> None:
        """Let all servers know that a worker takes its answers slowly."""
        for server in self.servers.values():
            server.lending.taken(worker, 1, 10.0)

    def poll_ranks(self, *ranks: int) -> None:
        """Let only these ranks work."""
        while sum(self.wires[rank].transport.poll() for rank in ranks):
            pass

    def settle(self) -> None:
        while self.poll():
            pass

    def table(self, table: Table) -> np.ndarray[Any, Any]:
        """The values of a table, wherever they are."""
        values = np.full((table.num_rows, table.num_columns), np.nan, table.dtype)
        for server in self.servers.values():
            for block in server.blocks:
                if block in self.layout.blocks_of(table.name):
                    values[self.layout.rows_of(block)] = server.values(block)
        return values


def ignore() -> None:
    pass


def test_a_pull_returns_what_was_pushed_to_dense_and_sparse_tables() -> None:
    cluster = Cluster()
    rng = np.random.default_rng(0)
    wanted = {DENSE.name: np.zeros((10, 3)), SPARSE.name: np.zeros((100, 2), np.float32)}
    for _ in range(5):
        for rank in cluster.clients:
            ids = np.unique(rng.integers(0, 100, 20))
            dense = rng.normal(size=(10, 3))
            sparse = rng.normal(size=(len(ids), 2)).astype(np.float32)
            cluster.push(rank, {"dense": Update(dense), "sparse": Update(sparse, ids)}, ignore)
            wanted["dense"] += dense
            wanted["sparse"][ids] += sparse
            pulled = cluster.pull(rank, {"sparse": ids})
            np.testing.assert_array_equal(pulled["sparse"], cluster.table(SPARSE)[ids])
    cluster.settle()
    np.testing.assert_allclose(cluster.table(DENSE), wanted["dense"])
    np.testing.assert_allclose(cluster.table(SPARSE), wanted["sparse"], rtol=1e-5)
    np.testing.assert_array_equal(cluster.pull(3, {"sparse": ids[:0]})["dense"], wanted["dense"])
    cluster.settle()
    assert all(server.is_idle for server in cluster.servers.values())
    assert all(buffers.used_bytes == 0 for buffers in cluster.buffers.values())


def test_a_push_of_some_rows_of_a_dense_table() -> None:
    cluster = Cluster()
    cluster.push(3, {"dense": Update(np.ones((2, 3)), np.array([1, 9]))}, ignore)
    assert cluster.pull(3, {})["dense"].sum(axis=1).tolist() == [0, 3, *[0] * 7, 3]


def test_a_block_that_is_being_sent_is_not_changed() -> None:
    cluster = Cluster()
    slow = cluster.clients[3]
    pull = slow.start_pull({})  # nobody receives the answer yet
    for rank in (1, 2):
        while cluster.wires[rank].transport.poll():
            pass
    done: list[bool] = []
    cluster.push(4, {"dense": Update(np.ones((10, 3)))}, lambda: done.append(True))
    for _ in range(20):
        for rank in (1, 2, 4):
            cluster.wires[rank].transport.poll()
    assert not done
    assert cluster.table(DENSE).sum() == 0
    cluster.settle()
    assert done
    assert cluster.table(DENSE).sum() == 30
    assert pull.is_over
    assert slow.finish_pull(pull)["dense"].sum() == 0


def test_a_copy_for_a_slow_worker_holds_no_push_up_and_has_the_values_of_its_time() -> None:
    cluster = Cluster()
    slow = cluster.clients[3]
    cluster.note_slow(3)
    for number in range(1, 4):
        pull = slow.start_pull({})  # nobody receives the answer yet
        cluster.poll_ranks(1, 2)
        assert not any(server.host.is_lending for server in cluster.servers.values())
        done: list[bool] = []
        cluster.push(4, {"dense": Update(np.ones((10, 3)))}, lambda done=done: done.append(True))
        cluster.poll_ranks(1, 2, 4)
        assert done
        assert cluster.table(DENSE).sum() == 30 * number
        assert all(buffers.used_bytes == SMALLEST for buffers in cluster.buffers.values())
        cluster.settle()
        assert slow.finish_pull(pull)["dense"].sum() == 30 * (number - 1)
        assert all(buffers.used_bytes == 0 for buffers in cluster.buffers.values())
        cluster.note_slow(3)  # it has been fast
    assert cluster.pull(3, {})["dense"].sum() == 90
    cluster.settle()
    assert all(server.is_idle for server in cluster.servers.values())


@pytest.mark.parametrize(("limit_bytes", "sync_blocks"), [(50, None), (None, 2)])
def test_without_room_or_with_a_barrier_blocks_are_lent_to_slow_workers_too(
    limit_bytes: int | None, sync_blocks: int | None
) -> None:
    cluster = Cluster(limit_bytes, sync_blocks)
    cluster.note_slow(3)
    cluster.clients[3].start_pull({})
    cluster.poll_ranks(1, 2)
    assert all(server.host.is_lending for server in cluster.servers.values())
    assert all(buffers.used_bytes == 0 for buffers in cluster.buffers.values())
    cluster.settle()
    assert all(server.is_idle for server in cluster.servers.values())


def test_a_server_notes_how_long_each_answer_takes() -> None:
    cluster = Cluster()
    notes: list[tuple[int, int]] = []
    for server in cluster.servers.values():
        server.lending.taken = lambda worker, num_bytes, seconds: notes.append((worker, num_bytes))  # type: ignore[method-assign]
    for _ in range(3):
        cluster.pull(4, {})
        cluster.settle()
    assert {worker for worker, _ in notes} == {4}
    assert sum(num_bytes for _, num_bytes in notes) == 3 * 10 * 3 * 8


def test_pushes_stay_at_their_workers_while_their_server_has_no_room() -> None:
    cluster = Cluster(limit_bytes=2 * SMALLEST)
    server = cluster.servers[1]
    assert server.host.pull(Pull(3, 0, 0, 0, {}, {}), 3, server.blocks, [0] * len(server.blocks))
    done: list[int] = []
    for worker in (3, 4, 3):  # all wait for blocks that are lent
        cluster.push(worker, {"dense": Update(np.ones((10, 3)))}, lambda: done.append(1))
        cluster.settle()
    assert not cluster.servers[1].room.is_idle
    assert not done
    assert cluster.buffers[1].most_bytes == cluster.buffers[1].used_bytes == 2 * SMALLEST
    server.perform(server.host.sent(server.blocks))
    cluster.settle()
    assert len(done) == 3
    assert cluster.table(DENSE).sum() == 90
    assert cluster.buffers[1].most_bytes == 2 * SMALLEST
    assert cluster.buffers[1].used_bytes == 0


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), limit_bytes=st.sampled_from([None, 5000]), copies=st.booleans())
def test_no_update_is_lost_or_applied_twice_while_blocks_move(
    seed: int, limit_bytes: int | None, copies: bool
) -> None:
    cluster = Cluster(limit_bytes)
    rng = np.random.default_rng(seed)
    wanted = {DENSE.name: np.zeros((10, 3)), SPARSE.name: np.zeros((100, 2), np.float32)}
    num_applied: list[int] = []
    for number in range(100):
        rank = int(rng.integers(3, 5))
        ids = np.unique(rng.integers(0, 100, rng.integers(1, 40)))
        ones = np.ones((10, 3))
        cluster.push(
            rank,
            {"dense": Update(ones), "sparse": Update(np.ones((len(ids), 2), np.float32), ids)},
            lambda number=number: num_applied.append(number),
        )
        wanted["dense"] += 1
        wanted["sparse"][ids] += 1
        action = rng.random()
        if copies:
            cluster.note_slow(3)
        if action < 0.2:
            source = int(rng.integers(1, 3))
            blocks = sorted(set(cluster.servers[source].blocks) - cluster.under_way)
            if blocks:
                chosen = rng.choice(blocks, min(2, len(blocks)), replace=False).tolist()
                cluster.under_way.update(chosen)
                cluster.moves[source].move(tuple(chosen), 3 - source)
        elif action < 0.4:
            pulled = cluster.pull(rank, {"sparse": ids})
            assert (pulled["sparse"] > 0).all()
        elif action < 0.6 and cluster.moved:
            (block,), owner = cluster.moved[int(rng.integers(len(cluster.moved)))]
            for each in (3, 4):  # maybe out of date: then it is forwarded
                cluster.ownerships[each].change([block], owner)
        for _ in range(int(rng.integers(0, 4))):
            cluster.wires[int(rng.integers(1, 5))].transport.poll()
    cluster.settle()
    assert sorted(num_applied) == list(range(100))
    np.testing.assert_array_equal(cluster.table(DENSE), wanted["dense"])
    np.testing.assert_array_equal(cluster.table(SPARSE), wanted["sparse"])
    assert cluster.moved
    assert all(server.is_idle for server in cluster.servers.values())
    for buffers in cluster.buffers.values():
        assert buffers.used_bytes == 0
        if limit_bytes is not None:
            # Beside it: rows of two pulls at a time, and pushes that were forwarded.
            assert buffers.most_bytes <= 7 * limit_bytes


def test_rows_count_as_they_come_and_updates_until_they_are_received() -> None:
    cluster = Cluster()
    client, kept = cluster.clients[3], cluster.kept[3]
    ids = np.arange(0, 100, 2)
    row_bytes = len(ids) * 2 * 4
    rows = cluster.pull(3, {"sparse": ids})["sparse"]
    assert kept.kept_bytes == row_bytes == rows.nbytes
    assert kept.most_bytes == 2 * row_bytes  # as they come, and in order
    cluster.pull(3, {"sparse": ids})
    assert kept.kept_bytes == row_bytes
    cluster.push(3, {"sparse": Update(rows, ids), "dense": Update(np.ones((10, 3)))}, ignore)
    assert kept.kept_bytes == row_bytes + 2 * row_bytes + 10 * 3 * 8  # rows also in the order of blocks
    cluster.wait_until(lambda: not client.num_unsent)
    client.drop_rows()
    assert kept.kept_bytes == 0
    cluster.pull(3, {})
    assert kept.kept_bytes == 0


def test_rows_or_updates_without_room_are_refused_before_anything_is_sent() -> None:
    cluster = Cluster(limit_bytes=10_000)
    client = cluster.clients[3]
    cluster.kept[3].hold(9_500)
    ids = np.arange(40)
    with pytest.raises(
        MemoryLimitError, match=r"a turn keeps 640 bytes .* tables leave 500; lower mini_batch"
    ):
        cluster.pull(3, {"sparse": ids})
    with pytest.raises(MemoryLimitError, match="a turn keeps 640 bytes"):
        cluster.push(3, {"sparse": Update(np.ones((40, 2), np.float32), ids)}, ignore)
    assert cluster.kept[3].kept_bytes == 0
    assert client.num_unapplied == 0
    assert not cluster.poll()
    assert cluster.pull(3, {"sparse": ids[:20]})["sparse"].shape == (20, 2)


def test_executors_of_one_machine_share_its_memory() -> None:
    machine = MachineMemory(10 * SMALLEST)
    one, other = machine.open(), machine.open()
    one.hold(6 * SMALLEST)
    one.check(7)
    other.hold(5 * SMALLEST)
    with pytest.raises(
        MemoryLimitError,
        match="memory_per_node: machine 7 got 40,960 bytes, but the blocks of this job take 20,480 and",
    ):
        other.check(7)
    other.hold(2 * SMALLEST)
    other.check(7)
    first = one.take(SMALLEST)
    assert not one.has_room(2 * SMALLEST)
    assert other.has_room(2 * SMALLEST)  # none is in use there yet
    other.keep(2 * SMALLEST)
    with pytest.raises(MemoryLimitError, match="dense tables of all jobs leave 8,192; lower mini_batch, use"):
        other.keep(1)
    assert machine.most_bytes == 11 * SMALLEST
    one.give(first)
    one.close()
    assert other.has_room(6 * SMALLEST)
    other.keep(6 * SMALLEST)


def test_what_is_kept_leaves_less_room_for_pushes_but_one_always_fits() -> None:
    buffers = Buffers(4 * SMALLEST)
    buffers.keep(3 * SMALLEST)
    first = buffers.take(SMALLEST)
    assert not buffers.has_room(SMALLEST)
    buffers.drop(SMALLEST)
    assert buffers.has_room(SMALLEST)
    assert buffers.most_bytes == 4 * SMALLEST
    buffers.keep(2 * SMALLEST)
    buffers.give(first)
    assert buffers.has_room(SMALLEST)  # else two workers that serve each other might wait for each other
