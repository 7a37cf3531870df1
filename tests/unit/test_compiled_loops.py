"""The compiled loops give what their twins in Python give, and refuse arrays that do not fit together."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from python_loops import ListParts, descend_in_python, improve_in_python, sample_in_python
from python_replay import replay_in_python
from traces import trace_of_steps

from hpcbal.forecast.cluster import Links, Topology
from hpcbal.forecast.program import Program, empty_record, program_of
from hpcbal.forecast.simulation import Chunk, Stop, replay_program
from hpcbal.forecast.trace import Resource, Trace, TracedOperation
from hpcbal.paramserver.apps import _descent
from hpcbal.paramserver.apps.descent import Penalty, Terms, descend
from hpcbal.paramserver.apps.lda import Counts, Prior, sample
from hpcbal.policies.samples import _drawing
from hpcbal.policies.samples.chronica import EpochQueues, Indicators, generated_sizes

# ---- CHRONICA's draws ----------------------------------------------------------------------


def both_queues(sizes: Any, owner: Any, num_workers: int, seed: list[int]) -> list[EpochQueues]:
    """Queues that draw in Python, and in C."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hpcbal.policies.samples.chronica.SortedParts", ListParts)
        in_python = EpochQueues(sizes, owner, num_workers, seed)
    return [in_python, EpochQueues(sizes, owner, num_workers, seed)]


@given(st.data(), st.integers(1, 6), st.integers(0, 2**32))
@settings(deadline=None)
def test_c_draws_to_the_last_bit_what_python_draws(data: st.DataObject, num_workers: int, seed: int) -> None:
    """Also for equal sizes, empty parts, unusable samples, and times that overflow."""
    num_samples = data.draw(st.integers(1, 80))
    sizes = data.draw(arrays(float, num_samples, elements=st.floats(0.01, 1e4) | st.sampled_from([1.0, 2.0])))
    owner = data.draw(arrays(np.int64, num_samples, elements=st.integers(-1, num_workers - 1)))
    slopes = arrays(float, num_workers, elements=st.floats(1e-3, 10) | st.sampled_from([1.0, 1e308]))
    launches = arrays(float, num_workers, elements=st.floats(0, 10) | st.sampled_from([0.0, -0.0]))
    in_python, in_c = both_queues(sizes, owner, num_workers, [seed])
    while in_python.num_left:
        indicators = Indicators(data.draw(slopes), data.draw(launches))
        batch_size = data.draw(st.integers(1, 30))
        with np.errstate(over="ignore"):
            wanted, got = (each.draw(indicators, batch_size) for each in (in_python, in_c))
        assert [own.tolist() for own in got] == [own.tolist() for own in wanted]
        assert in_c.num_left == in_python.num_left


def test_many_draws_in_c_are_those_of_python() -> None:
    sizes, owner = generated_sizes(40_000, 64.0, 0), np.random.default_rng(0).integers(0, 100, 40_000)
    indicators = Indicators(np.linspace(1.0, 2.0, 100), np.full(100, 3.0))
    queues = both_queues(sizes, owner, 100, [0, 1])
    while queues[0].num_left:
        wanted, got = (each.draw(indicators, 400) for each in queues)
        assert all(map(np.array_equal, wanted, got))


def test_arrays_that_do_not_fit_together_are_refused() -> None:
    def draw(
        worker: int = 0, place: int = 0, num_samples: int = 2, slopes: int = 2, dtype: str = "int32"
    ) -> None:
        bounds, left, zeros = np.array([0, 2, 3]), np.array([2, 1]), np.zeros(2, np.int64)
        sizes, below = np.array([1.0, 2.0, 1.0]), np.arange(3, dtype=dtype)
        taken = np.zeros(num_samples, np.int64)
        times = (np.ones(slopes), np.zeros(2))
        _drawing.draw(sizes, below, bounds, bounds[:2].copy(), left, *times, worker, place, taken, zeros)

    draw()
    wrong = (
        {"worker": 2},
        {"place": 2},
        {"num_samples": 4},
        {"num_samples": 0},
        {"slopes": 1},
        {"dtype": "int64"},
    )
    for values in wrong:
        with pytest.raises(ValueError, match="do not fit together"):
            draw(**values)


# ---- topics --------------------------------------------------------------------------------


@given(st.integers(1, 9), st.integers(1, 6), st.integers(0, 2**32))
@settings(deadline=None)
def test_c_samples_the_topics_that_python_samples(num_topics: int, num_rows: int, seed: int) -> None:
    """Several parts that share their counts, documents without words, and words of one topic."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 30, rng.integers(1, 8))
    starts = np.concatenate([[0], np.cumsum(lengths)])
    rows = rng.integers(0, num_rows, starts[-1], np.int32)
    topics = rng.integers(0, num_topics, starts[-1], np.int32)
    counts = rng.integers(0, 3, (num_rows, num_topics), np.int32)
    np.add.at(counts, (rows, topics), 1)
    totals = counts.sum(axis=0)
    prior = Prior(float(rng.choice([1e-3, 0.1, 5.0])), 0.05, 0.05 * num_rows)
    got, wanted = topics.copy(), topics.copy()
    in_c, in_python = Counts.of(counts, totals), Counts.of(counts, totals)
    for _ in range(3):
        uniforms = rng.random(starts[-1])
        sample_in_python(rows, starts, uniforms, wanted, in_python, prior)
        sample(rows, starts, uniforms, got, in_c, prior)
        assert got.tolist() == wanted.tolist()
        got[:], wanted[:] = topics, topics  # the next part also starts from the pulled counts
    assert (in_c.counts == counts).all()
    assert (in_c.totals == totals).all()
    assert (in_c.deltas == in_python.deltas).all()
    assert (in_c.total_deltas == in_python.total_deltas).all()


def test_topics_that_do_not_fit_their_counts_are_refused() -> None:
    def sample_some(
        row: int = 0, topic: int = 0, last: int = 2, uniforms: int = 2, num_topics: int = 3
    ) -> None:
        shared = Counts.of(np.ones((2, 3), np.int32), np.full(num_topics, 2))
        rows, topics = np.array([row, 1], np.int32), np.array([topic, 1], np.int32)
        starts = np.array([0, 1, last])
        sample(rows, starts, np.zeros(uniforms), topics, shared, Prior(0.1, 0.1, 0.2))

    sample_some()
    for wrong in (
        {"row": 2},
        {"row": -1},
        {"topic": 3},
        {"last": 3},
        {"last": 0},
        {"uniforms": 1},
        {"num_topics": 2},
    ):
        with pytest.raises(ValueError, match="do not fit together"):
            sample_some(**wrong)


# ---- Lasso and non-negative factors --------------------------------------------------------


@given(st.integers(0, 6), st.integers(1, 13), st.integers(1, 4), st.booleans(), st.integers(0, 2**32))
@settings(deadline=None)
def test_c_descends_as_numpy_does(
    num_features: int, num_rows: int, passes: int, is_sparse: bool, seed: int
) -> None:
    """Features without terms or of zeros, and a part of the features among others."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 9, num_features + 2) if is_sparse else np.full(num_features + 2, num_rows)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    values = rng.normal(size=starts[-1]) * rng.integers(0, 2, starts[-1])
    places = rng.integers(0, num_rows, starts[-1]) if is_sparse else None
    terms = Terms(places, starts, values).of(1, num_features + 1)
    penalty = Penalty(float(rng.choice([0.0, 0.1])), float(rng.choice([1.0, 3.0])), num_rows, passes)
    residual, mean_squares = rng.normal(size=num_rows), rng.uniform(0.5, 2.0, num_features)
    before = rng.normal(size=num_features) * rng.integers(0, 2, num_features)
    got, wanted = (
        (mean_squares, before.copy(), residual, residual.copy(), np.ones(num_rows)) for _ in range(2)
    )
    descend(terms, *got, penalty)
    descend_in_python(terms, *wanted, penalty)
    for own, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-9, atol=1e-10)
    np.testing.assert_array_equal(got[3], residual)


def test_features_that_do_not_fit_their_rows_are_refused() -> None:
    def descend_some(
        place: int | None = 0,
        first: int = 0,
        last: int = 3,
        num_values: int = 3,
        num_rows: int = 2,
        squares: int = 2,
    ) -> None:
        places = None if place is None else np.array([place, 1, 1])
        terms = Terms(places, np.array([first, 1, last]), np.ones(num_values))
        arrays = (np.ones(squares), np.zeros(2), np.zeros(num_rows), np.zeros(2), np.zeros(2))
        descend(terms, *arrays, Penalty(0.05, 1.5, 7, 3))

    descend_some()
    wrong: tuple[dict[str, Any], ...] = (
        {"place": 2},
        {"place": -1},
        {"place": None},
        {"first": -1},
        {"first": 2},
        {"last": 4},
        {"last": 0},
        {"num_values": 2},
        {"num_rows": 3},
        {"squares": 3},
    )
    for values in wrong:
        with pytest.raises(ValueError, match="do not fit together"):
            descend_some(**values)


@given(st.integers(0, 5), st.integers(1, 9), st.integers(1, 3), st.integers(0, 2**32))
@settings(deadline=None)
def test_c_improves_factors_as_numpy_does(num_rows: int, rank: int, sweeps: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    other, factors = rng.random((12, rank)), rng.random((num_rows, rank)) * rng.integers(0, 2, rank)
    products, gram = rng.random((num_rows, 12)) @ other, other.T @ other
    penalty, wanted = float(rng.choice([0.0, 0.3])), factors.copy()
    improve_in_python(wanted, products, gram, penalty, sweeps)
    _descent.improve_factors(factors, products, gram, penalty, rank, sweeps)
    np.testing.assert_allclose(factors, wanted, rtol=1e-8, atol=1e-9)


def test_factors_that_do_not_fit_their_gram_matrix_are_refused() -> None:
    def improve(num_rows: int = 2, size: int = 3, rank: int = 3) -> None:
        factors = np.zeros((2, 3))
        _descent.improve_factors(factors, np.ones((num_rows, 3)), np.eye(size), 0.0, rank, 1)

    improve()
    for wrong in ({"num_rows": 3}, {"size": 4}, {"rank": 2}, {"rank": 0}, {"rank": -3}, {"rank": 2**40}):
        with pytest.raises(ValueError, match="do not fit together"):
            improve(**wrong)


# ---- forecasts -----------------------------------------------------------------------------


def random_trace(rng: np.random.Generator, num_operations: int, num_servers: int) -> Trace:
    """Whole numbers among the times and bytes, so that many events come at the same time."""
    operations = [TracedOperation("last server", Resource.DOWNLINK, (), 3, num_servers - 1)]
    for position in range(1, num_operations):
        resource = list(Resource)[rng.integers(5)]
        operations.append(
            TracedOperation(
                f"{position}",
                resource,
                tuple(sorted({int(before) for before in rng.integers(0, position, rng.integers(3))})),
                int(rng.integers(7)) if resource.is_link else 0,
                0 if resource in {Resource.WORKER, Resource.DELAY} else int(rng.integers(num_servers)),
            )
        )
    exact = rng.integers(0, 4, (3, num_operations)) * 0.5
    rows = np.where(rng.random(exact.shape) < 0.5, exact, rng.random(exact.shape))
    trace = trace_of_steps(operations, rows)
    orders = np.tile(trace.positions(Resource.DOWNLINK), (3, 1))
    return dataclasses.replace(trace, downlink_orders=rng.permuted(orders, axis=1))


NUM_OPERATIONS = st.one_of(st.integers(1, 12), st.sampled_from([63, 64, 65, 130, 200]))
"""C keeps computations that wait as bits of 64-bit words."""


@given(NUM_OPERATIONS, st.integers(1, 5), st.integers(1, 3), st.booleans(), st.integers(0, 2**32))
@settings(deadline=None)
def test_c_replays_to_the_last_bit_what_python_replays(
    num_operations: int, num_workers: int, num_servers: int, alike: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    trace = random_trace(rng, num_operations, num_servers)

    def machine(is_worker: bool) -> Links:
        if alike:
            return Links(float("inf") if is_worker else 2.0, 2.0)
        return Links(*rng.uniform(0.5, 3.0, 3))

    cluster = Topology(
        tuple(machine(True) for _ in range(num_workers)), tuple(machine(False) for _ in range(num_servers))
    )
    order, window = str(rng.choice(["fifo", "random"])), float(rng.choice([2.0, np.inf]))
    begins_s = rng.choice([0.0, 0.5, rng.random()], num_workers).tolist() if rng.integers(2) else ()
    program = program_of(trace, cluster, 5, seed, order, window, bool(rng.integers(2)), begins_s)
    wanted, got = empty_record(program), empty_record(program)
    seen_in_python: list[Chunk] = []
    seen: list[Chunk] = []
    replay_in_python(program, wanted, seen_in_python.append)
    replay_program(program, got, seen.append)
    assert seen == seen_in_python
    for field in dataclasses.fields(wanted):
        assert np.array_equal(getattr(got, field.name), getattr(wanted, field.name)), field.name


def test_a_program_that_does_not_fit_together_is_refused() -> None:
    operations = [
        TracedOperation("receive", Resource.DOWNLINK, (), 10),
        TracedOperation("compute", Resource.WORKER, (0,)),
        TracedOperation("send", Resource.UPLINK, (1,), 10),
    ]
    program = program_of(
        trace_of_steps(operations, [[0.0, 1.0, 0.0]]),
        Topology((Links(1.0, 1.0),), (Links(1.0, 1.0),)),
        2,
        0,
        "fifo",
        5.0,
    )

    def changed(**changes: Any) -> Program:
        return dataclasses.replace(program, **changes)

    def replay(**changes: Any) -> None:
        replay_program(changed(**changes), empty_record(program))

    replay()
    for wrong in ({"durations_s": np.full((1, 3), np.inf)}, {"worker_slowness": np.array([np.nan])}):
        with pytest.raises(ValueError, match="no finite number"):
            replay(**wrong)
        with pytest.raises(ValueError, match="no finite number"):
            replay_in_python(changed(**wrong), empty_record(program))
    stop = Stop()
    stop.set()
    for replayed in (replay_in_python, replay_program):
        with pytest.raises(KeyboardInterrupt):
            replayed(program, empty_record(program), stop=stop)
    with pytest.raises(ValueError, match="do not fit together"):
        replay(begins_s=np.zeros(2))
    for wrong in (
        {"kind": np.array([0, 5, 1])},
        {"server": np.array([0, 1, 0])},
        {"num_bytes": np.ones(2)},
        {"num_waits": np.array([0, 1, 2])},
        {"dependents": np.array([1, 1])},
        {"dependents": np.array([1, 3])},
        {"starts": np.array([0, 2, 1, 2])},
        {"roots": np.array([0, 0])},
        {"roots": np.array([1])},
        {"roots": np.array([[0], [0]])},
        {"drawn": np.array([[0, 1]])},
        {"bytes_per_s": np.ones((2, 3))},
        {"worker_slowness": np.ones(0)},
        {"durations_s": np.ones((1, 4))},
    ):
        with pytest.raises(ValueError, match="do not fit together"):
            replay(**wrong)


def test_what_an_observer_raises_ends_the_replay() -> None:
    operations = [TracedOperation("compute", Resource.WORKER, ())]
    cluster = Topology((Links(1.0, 1.0),), (Links(1.0, 1.0),))
    program = program_of(trace_of_steps(operations, [[1.0]]), cluster, 100, 0, "fifo", 5.0)
    seen: list[Chunk] = []

    def observe(chunk: Chunk) -> None:
        seen.append(chunk)
        if len(seen) == 3:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        replay_program(program, empty_record(program), observe)
    assert len(seen) == 3
