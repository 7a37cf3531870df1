"""The replay of a trace on many workers, against cases by hand and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from stepped_replay import ends_by_stepping
from traces import like_machines, trace_of_steps

from hpcbal.errors import PolicyError
from hpcbal.forecast.cluster import Links, Topology
from hpcbal.forecast.simulation import FLOW_CONTROL_OFF, Chunk, Settings, simulate
from hpcbal.forecast.trace import Resource, Trace, TracedOperation
from hpcbal.paramserver.store.links import Link


def chain(down: int, compute_s: float, up: int, apply_s: float = 0.0) -> Trace:
    """A step of four operations, one after the other."""
    return trace_of_steps(
        [
            TracedOperation("receive", Resource.DOWNLINK, (), down),
            TracedOperation("compute", Resource.WORKER, (0,)),
            TracedOperation("send", Resource.UPLINK, (1,), up),
            TracedOperation("apply", Resource.SERVER, (2,)),
        ],
        [[0.0, compute_s, 0.0, apply_s]],
    )


def test_one_worker_takes_the_sum_of_a_chain() -> None:
    replay = simulate(chain(100, 2.0, 50, 0.25), like_machines(1, 1, 100.0), Settings(3))
    assert replay.ends_s[0] == pytest.approx([3.75, 7.5, 11.25])


def test_two_workers_share_both_directions_by_hand() -> None:
    # Both receive at half speed (2 s), compute (1 s), send at half speed (2 s).
    replay = simulate(chain(100, 1.0, 100), like_machines(2, 1, 100.0), Settings(2))
    assert [ends.tolist() for ends in replay.ends_s] in ([[5.0, 10.0], [5.0]], [[5.0, 10.0], [5.0, 10.0]])


def test_a_slower_worker_shares_a_part_of_each_transfer_by_hand() -> None:
    # Both receive until 2 s; they compute until 3 s and 3.5 s. Worker 0 sends alone for half a second, then
    # both share: it ends at 4.5 s, worker 1 at 5 s. Worker 0 receives alone until 5 s, then both share until
    # 6 s; it computes until 7 s and sends alone: worker 1 receives until 6.5 s and computes until 8 s.
    cluster = Topology((Links(100, 100), Links(100, 100, slowness=1.5)), (Links(100, 100),))
    replay = simulate(chain(100, 1.0, 100), cluster, Settings(2))
    assert replay.ends_s[0] == pytest.approx([4.5, 8.0])
    assert replay.ends_s[1] == pytest.approx([5.0])
    assert replay.communicating_s == pytest.approx([2 + 1.5 + 1.5 + 1, 2 + 1.5 + 1.5])
    assert replay.computing_s == pytest.approx([2.0, 3.0])
    assert replay.exposed_s == pytest.approx(replay.communicating_s)


def test_two_servers_serve_a_worker_each_by_hand() -> None:
    # Each worker receives from both servers and each server sends to both workers, so all four transfers
    # run at 50: 2 s for 100 bytes. Computing takes 1 s.
    operations = [
        TracedOperation("a", Resource.DOWNLINK, (), 100, 0),
        TracedOperation("b", Resource.DOWNLINK, (), 100, 1),
        TracedOperation("c", Resource.WORKER, (0, 1)),
    ]
    replay = simulate(trace_of_steps(operations, [[0, 0, 1]]), like_machines(2, 2, 100.0), Settings(2))
    assert replay.ends_s[0] == pytest.approx([3.0, 6.0])
    assert replay.bytes_moved.tolist() == [pytest.approx([400, 400]), [0, 0]]


def test_exposed_is_what_computation_does_not_hide_by_hand() -> None:
    # The second transfer, from 1 s to 3 s, is hidden by the first computation until 2 s.
    operations = [
        TracedOperation("a", Resource.DOWNLINK, (), 100),
        TracedOperation("b", Resource.DOWNLINK, (), 200),
        TracedOperation("first", Resource.WORKER, (0,)),
        TracedOperation("second", Resource.WORKER, (1, 2)),
    ]
    replay = simulate(trace_of_steps(operations, [[0, 0, 1, 1]]), like_machines(1, 1, 100.0), Settings(1))
    assert replay.end_s == pytest.approx(4.0)
    assert replay.communicating_s == pytest.approx([3.0])
    assert replay.exposed_s == pytest.approx([2.0])
    assert replay.computing_s == pytest.approx([2.0])


def test_workers_that_start_apart_do_not_meet_on_the_link_by_hand() -> None:
    # Alone, transfer and computation take 1 s each. Two that start together share each transfer: 3 s a step.
    operations = (
        TracedOperation("down", Resource.DOWNLINK, (), 100),
        TracedOperation("compute", Resource.WORKER, (0,)),
    )
    trace = trace_of_steps(operations, [[0, 1]])
    for apart_s, step_s in ((0.0, 3.0), (1.0, 2.0)):
        settings = Settings(20, begins_s=(0.0, apart_s))
        replay = simulate(trace, like_machines(2, 1, 100.0), settings)
        for worker, ends_s in enumerate(replay.ends_s):
            first_s = worker * apart_s + step_s
            assert ends_s == pytest.approx(first_s + step_s * np.arange(len(ends_s)))
    with pytest.raises(PolicyError, match=r"start at \(0.0, -1.0\) s; each must be finite and at least 0"):
        Settings(begins_s=(0.0, -1.0))
    with pytest.raises(PolicyError, match="1 starts for 2 workers: give one for each, or none"):
        simulate(trace, like_machines(2, 1, 100.0), Settings(begins_s=(0.0,)))


def test_delays_pass_side_by_side_and_are_the_same_on_slow_machines_by_hand() -> None:
    # The transfer ends at 1 s. Both delays and the first computation start then; computing takes 2 s on this
    # worker. The second computation waits for the longer delay.
    operations = (
        TracedOperation("down", Resource.DOWNLINK, (), 100),
        TracedOperation("short", Resource.DELAY, (0,)),
        TracedOperation("long", Resource.DELAY, (0,)),
        TracedOperation("compute", Resource.WORKER, (0,)),
        TracedOperation("finish", Resource.WORKER, (1, 2, 3)),
    )
    trace = trace_of_steps(operations, [[0, 2, 4, 1, 1]])
    cluster = Topology((Links(100, 100, slowness=2.0),), (Links(100, 100, slowness=3.0),))
    chunks: list[Chunk] = []
    replay = simulate(trace, cluster, Settings(2), chunks.append)
    assert replay.ends_s[0] == pytest.approx([7.0, 14.0])
    assert replay.computing_s == pytest.approx([8.0])
    assert replay.serving_s == pytest.approx([0.0])
    found = [(chunk.begin_s, chunk.end_s) for chunk in chunks if chunk.operation == 2]
    assert found == ([(1.0, 5.0), (8.0, 12.0)])


def test_computations_that_are_ready_go_in_the_order_of_the_trace_by_hand() -> None:
    # All three can start at 1 s or later; the one that is listed last and starts a transfer goes last.
    operations = (
        TracedOperation("parameters", Resource.DOWNLINK, (), 100),
        TracedOperation("first", Resource.WORKER, (0,)),
        TracedOperation("second", Resource.WORKER, (1,)),
        TracedOperation("hand over", Resource.WORKER, (0,)),
        TracedOperation("update", Resource.UPLINK, (3,), 100),
    )
    trace = trace_of_steps(operations, [[0, 1, 1, 1, 0]])
    replay = simulate(trace, like_machines(1, 1, 100.0), Settings(1))
    assert replay.end_s == pytest.approx(5.0)


def test_transfers_move_in_the_order_of_their_recorded_step_by_hand() -> None:
    # Computing needs the first transfer only. If that comes first, it ends at 2 s; if not, at 3 s, and the
    # other transfer takes until 1 s.
    operations = (
        TracedOperation("needed", Resource.DOWNLINK, (), 100),
        TracedOperation("other", Resource.DOWNLINK, (), 100),
        TracedOperation("compute", Resource.WORKER, (0,)),
    )
    for order, end_s in (([0, 1], 2.0), ([1, 0], 3.0)):
        trace = Trace(operations, np.array([[0.0, 0.0, 1.0]]), downlink_orders=np.array([order]))
        replay = simulate(trace, like_machines(1, 1, 100.0), Settings(1))
        assert replay.end_s == pytest.approx(end_s)
        asked = simulate(trace, like_machines(1, 1, 100.0), Settings(1, order="tic"))
        assert asked.end_s == pytest.approx(2.0)
    both = Trace(operations, np.array([[0, 0, 1.0]] * 2), downlink_orders=np.array([[0, 1], [1, 0]]))
    ends = simulate(both, like_machines(1, 1, 100.0), Settings(100)).ends_s[0]
    assert set(np.diff(ends).round(6)) == {2.0, 3.0}


def test_an_unlike_worker_leaves_the_link_earlier_by_hand() -> None:
    # Worker 1's link carries 25: worker 0 gets 75 and is done after 4/3 s; the other needs 4 s.
    cluster = Topology((Links(100, 100), Links(25, 25)), (Links(100, 100),))
    chunks: list[Chunk] = []
    simulate(chain(100, 8.0, 0), cluster, Settings(1), chunks.append)
    ends = {chunk.worker: chunk.end_s for chunk in chunks if chunk.operation == 0}
    assert ends == pytest.approx({0: 4 / 3, 1: 4.0})


def test_streams_pause_once_after_a_window() -> None:
    sizes = [5, 2, 8]
    trace = trace_of_steps([TracedOperation(f"{n}", Resource.DOWNLINK, (), n) for n in sizes], [[0.0] * 3])
    chunks: list[Chunk] = []
    simulate(trace, like_machines(1, 1, 1.0), Settings(1, window_bytes=3), chunks.append)
    assert [(c.operation, c.end_s - c.begin_s) for c in chunks] == [(0, 3), (1, 2), (2, 3), (0, 2), (2, 5)]
    chunks.clear()
    simulate(trace, like_machines(1, 1, 1.0), Settings(1, window_bytes=FLOW_CONTROL_OFF), chunks.append)
    assert [(c.operation, c.end_s - c.begin_s) for c in chunks] == [(0, 5), (1, 2), (2, 8)]


@pytest.mark.parametrize("num_workers", [1, 3, 8])
def test_without_computation_the_link_limits(num_workers: int) -> None:
    replay = simulate(chain(100, 0.0, 0), like_machines(num_workers, 1, 50.0), Settings(40))
    assert replay.steps_per_s(5) == pytest.approx(0.5)
    assert replay.busy_s[0, 0] == pytest.approx(replay.end_s)


@pytest.mark.parametrize("num_workers", [1, 3, 8])
def test_without_communication_w_workers_are_w_times_as_fast(num_workers: int) -> None:
    replay = simulate(chain(0, 2.0, 0, 0.5), like_machines(num_workers, 1, 50.0), Settings(40))
    assert replay.steps_per_s(5) == pytest.approx(num_workers / 2.5)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Small graphs of whole numbers, on one server."""
    operations: list[TracedOperation] = []
    for position in range(draw(st.integers(1, 7))):
        resource = draw(st.sampled_from(list(Resource)))
        waits_for = draw(st.sets(st.integers(0, position - 1), max_size=2)) if position else set()
        num_bytes = draw(st.integers(1, 6)) if resource.is_link else 0
        operations.append(TracedOperation(f"{position}", resource, tuple(sorted(waits_for)), num_bytes))
    row = st.lists(st.integers(1, 5), min_size=len(operations), max_size=len(operations))
    return trace_of_steps(operations, draw(st.lists(row, min_size=1, max_size=3)))


@settings(max_examples=30, deadline=None)
@given(traces(), st.integers(1, 4), st.integers(0, 5))
def test_bytes_are_conserved_and_the_same_seed_gives_the_same(trace: Trace, workers: int, seed: int) -> None:
    setting = Settings(4, seed, window_bytes=3)
    chunks: list[Chunk] = []
    replay = simulate(trace, like_machines(workers, 1, 2.0), setting, chunks.append)
    done = sum(ends.size for ends in replay.ends_s)
    for kind, resource in enumerate((Resource.DOWNLINK, Resource.UPLINK)):
        per_step = trace.num_bytes(resource)
        assert done * per_step - 1e-6 <= replay.bytes_moved[kind, 0] <= (done + workers) * per_step + 1e-6
        assert replay.bytes_moved[kind, 0] == pytest.approx(2.0 * replay.busy_s[kind, 0])
    again = simulate(trace, like_machines(workers, 1, 2.0), setting)
    assert all(np.array_equal(a, b) for a, b in zip(replay.ends_s, again.ends_s, strict=True))
    ended: dict[tuple[int, int, int], float] = {}
    for chunk in chunks:
        for before in trace.operations[chunk.operation].waits_for:
            assert ended[chunk.worker, chunk.step, before] <= chunk.begin_s
        ended[chunk.worker, chunk.step, chunk.operation] = chunk.end_s


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3), st.sampled_from([1.5, FLOW_CONTROL_OFF]))
def test_small_steps_of_time_come_to_the_same_ends(seed: int, workers: int, window: float) -> None:
    rng, tick_s = np.random.default_rng(seed), 1 / 512
    operations: list[TracedOperation] = []
    for position in range(rng.integers(2, 6)):
        resource = list(Resource)[rng.integers(5)]
        before = {int(each) for each in rng.integers(0, position, 2)} if position else set()
        size = int(rng.integers(1, 5)) if resource.is_link else 0
        operations.append(TracedOperation(f"{position}", resource, tuple(sorted(before)), size))
    durations = rng.uniform(1.0, 3.0, len(operations))
    cluster, setting = like_machines(workers, 1, 2.0), Settings(2, window_bytes=window)

    def replayed(durations_s: np.ndarray) -> list[list[float]]:
        trace = Trace(tuple(operations), durations_s[np.newaxis])
        return [ends.tolist() for ends in simulate(trace, cluster, setting).ends_s]

    exact = replayed(durations)
    # Where operations become ready at nearly the same time, a tick may swap them, and the rest is different.
    for _ in range(3):
        nudged = replayed(durations * rng.uniform(1.0, 1.005, durations.size))
        assume([len(ends) for ends in nudged] == [len(ends) for ends in exact])
        assume(all(a == pytest.approx(b, rel=0.05) for a, b in zip(nudged, exact, strict=True)))
    trace = Trace(tuple(operations), durations[np.newaxis])
    stepped = ends_by_stepping(trace, workers, 2.0, 2, window, tick_s)
    for ends, expected in zip(stepped, exact, strict=True):
        both = min(len(ends), len(expected))  # at the end of the run another may end a tick later
        assert abs(len(ends) - len(expected)) <= 1
        assert ends[:both] == pytest.approx(expected[:both], rel=0.03)


def test_what_cannot_be_simulated_is_named() -> None:
    with pytest.raises(PolicyError, match="1 servers, but the cluster 2"):
        simulate(chain(1, 1, 1), like_machines(1, 2, 1.0), Settings())
    with pytest.raises(PolicyError, match="worker 0 did 3 steps, 3 of them to warm up"):
        simulate(chain(1, 1, 1), like_machines(1, 1, 1.0), Settings(3)).steps_per_s(3)
    with pytest.raises(PolicyError, match="at least one step"):
        Settings(0)
    with pytest.raises(PolicyError, match="20000000000 steps of all workers together are too many"):
        simulate(chain(1, 1, 1), like_machines(2, 1, 1.0), Settings(10**10))
    with pytest.raises(PolicyError, match="at least one of each"):
        like_machines(0, 1, 1.0)


# ---- links that carry one message after another ------------------------------------------------


IN_TURN = {"window_bytes": FLOW_CONTROL_OFF, "in_turn": True}


def test_in_turn_the_second_worker_waits_for_the_first_by_hand() -> None:
    # Worker 0 receives until 1 s, worker 1 until 2 s; both compute for 1 s and send alone: 3 s, and 4 s. Then
    # they are a second apart and never meet again.
    chunks: list[Chunk] = []
    setting = Settings(3, **IN_TURN)
    replay = simulate(chain(100, 1.0, 100), like_machines(2, 1, 100.0), setting, chunks.append)
    assert replay.ends_s[0] == pytest.approx([3.0, 6.0, 9.0])
    assert replay.ends_s[1] == pytest.approx([4.0, 7.0])
    assert replay.bytes_moved[:, 0] == pytest.approx([600, 500])
    assert replay.busy_s[:, 0] == pytest.approx([6.0, 5.0])
    assert replay.communicating_s == pytest.approx([6.0, 2 + 4 * 1])
    begins = [(chunk.worker, chunk.begin_s) for chunk in chunks if chunk.operation == 0][:2]
    assert begins == [(0, 0.0), (1, 1.0)]


def test_in_turn_a_second_message_leaves_before_the_first_has_arrived_by_hand() -> None:
    # The worker's link carries 100, the server's 50: the second message leaves at 1 s, and the server takes
    # it when it has taken the first, at 2 s. It has arrived at 4 s.
    operations = [
        TracedOperation("a", Resource.UPLINK, (), 100),
        TracedOperation("b", Resource.UPLINK, (), 100),
    ]
    chunks: list[Chunk] = []
    cluster = Topology((Links(100, 100),), (Links(50, 50),))
    simulate(trace_of_steps(operations, [[0.0, 0.0]]), cluster, Settings(1, **IN_TURN), chunks.append)
    assert [(c.begin_s, c.end_s) for c in chunks] == [(0.0, 2.0), (1.0, 4.0)]


@pytest.mark.parametrize("num_workers", [1, 3, 8])
def test_in_turn_throughput_is_that_of_workers_or_of_the_link(num_workers: int) -> None:
    # A step alone takes 1 s for each direction and 2 s of computing; a link carries one message per second.
    replay = simulate(chain(100, 2.0, 100), like_machines(num_workers, 1, 100.0), Settings(60, **IN_TURN))
    assert replay.steps_per_s(20) == pytest.approx(min(num_workers / 4.0, 1.0), rel=0.02)


@settings(max_examples=30, deadline=None)
@given(traces(), st.integers(1, 4), st.integers(0, 5))
def test_in_turn_links_are_never_taken_twice_and_bytes_are_conserved(
    trace: Trace, workers: int, seed: int
) -> None:
    chunks: list[Chunk] = []
    setting = Settings(4, seed, **IN_TURN)
    replay = simulate(trace, like_machines(workers, 1, 2.0), setting, chunks.append)
    done = sum(ends.size for ends in replay.ends_s)
    for kind, resource in enumerate((Resource.DOWNLINK, Resource.UPLINK)):
        per_step = trace.num_bytes(resource)
        assert done * per_step <= replay.bytes_moved[kind, 0] <= (done + workers) * per_step
        assert replay.bytes_moved[kind, 0] == pytest.approx(2.0 * replay.busy_s[kind, 0])
        assert replay.bytes_moved[kind, 0] <= 2.0 * replay.end_s + 1e-6
    ended: dict[tuple[int, int, int], float] = {}
    for chunk in chunks:
        for before in trace.operations[chunk.operation].waits_for:
            assert ended[chunk.worker, chunk.step, before] <= chunk.begin_s
        ended[chunk.worker, chunk.step, chunk.operation] = chunk.end_s


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 3))
def test_in_turn_links_agree_with_those_of_the_engine(seed: int, workers: int, servers: int) -> None:
    """Messages that are sent at random times arrive when `Link` says."""
    rng = np.random.default_rng(seed)
    rate, num_messages = 100.0, 12
    waits, sizes = rng.uniform(0.0, 3.0, num_messages), rng.integers(1, 200, num_messages)
    operations: list[TracedOperation] = []
    for position in range(num_messages):
        server = int(rng.integers(servers)) if position else servers - 1
        operations += [
            TracedOperation("wait", Resource.WORKER, (2 * position - 2,) if position else ()),
            TracedOperation("send", Resource.UPLINK, (2 * position,), int(sizes[position]), server),
        ]
    durations = np.zeros(2 * num_messages)
    durations[::2] = waits
    slowness = rng.uniform(0.5, 2.0, workers)
    cluster = Topology(
        tuple(Links(rate, rate, each) for each in slowness), tuple(Links(rate, rate) for _ in range(servers))
    )
    chunks: list[Chunk] = []
    simulate(Trace(tuple(operations), durations[np.newaxis]), cluster, Settings(1, **IN_TURN), chunks.append)
    sends = sorted(
        (round(1e9 * slowness[worker] * waits[: position + 1].sum()), worker, position)
        for worker in range(workers)
        for position in range(num_messages)
    )
    senders: list[Link[int]] = [Link(rate) for _ in range(workers)]
    receivers: list[Link[tuple[int, int]]] = [Link(rate) for _ in range(servers)]
    for now_ns, worker, position in sends:
        span = senders[worker].leave(now_ns, int(sizes[position]))
        receivers[operations[2 * position + 1].server].announce(
            (worker, 2 * position + 1), int(sizes[position]), *span
        )
    arrived = {}
    for receiver in receivers:
        while (next_ns := receiver.next_ns) is not None:
            arrived |= dict.fromkeys(receiver.arrived(next_ns), next_ns / 1e9)
    found = {(c.worker, c.operation): c.end_s for c in chunks if c.operation % 2}
    assert found
    for key, end_s in found.items():
        assert end_s == pytest.approx(arrived[key], abs=1e-6)
