"""Bands, limits, knees and the cheapest machines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from traces import like_machines, trace_of_steps

from hpcbal.forecast import (
    Links,
    Resource,
    Settings,
    Topology,
    Trace,
    TracedOperation,
    simulate,
)
from hpcbal.forecast.overhead import ParsingOverhead, with_step_overhead
from hpcbal.forecast.prediction import (
    Band,
    Limit,
    Prediction,
    Prices,
    TracedJob,
    cheapest,
    figures_of,
    knee,
    limit_of,
    predict,
)
from hpcbal.forecast.simulation import Chunk, Stop, events_of


def chain(down: int, compute_s: float, up: int, apply_s: float, spread: float = 0.0) -> Trace:
    operations = [
        TracedOperation("receive", Resource.DOWNLINK, (), down),
        TracedOperation("compute", Resource.WORKER, (0,)),
        TracedOperation("send", Resource.UPLINK, (1,), up),
        TracedOperation("apply", Resource.SERVER, (2,)),
    ]
    rows = [[0.0, compute_s * (1 + spread * i), 0.0, apply_s] for i in range(-2, 3)]
    return trace_of_steps(operations, rows, 8)


def job_of(trace: Trace, num_workers: int, parsing: tuple[float, float] = (0.0, 0.0)) -> TracedJob:
    return TracedJob(trace, like_machines(num_workers, 1, 100.0), ParsingOverhead(*parsing), Settings(200))


@pytest.mark.parametrize(
    ("trace", "num_workers", "parsing", "limit"),
    [
        (chain(1000, 1.0, 10, 0.1), 6, (0.0, 0.0), Limit.DOWNLINK),
        (chain(10, 1.0, 1000, 0.1), 6, (0.0, 0.0), Limit.UPLINK),
        (chain(1000, 1.0, 1000, 0.1), 30, (0.0, 0.0), Limit.LINKS),
        (chain(10, 5.0, 10, 0.1), 2, (0.0, 0.0), Limit.COMPUTING),
        (chain(10, 0.1, 10, 5.0), 2, (0.0, 0.0), Limit.UPDATES),
        (chain(10, 0.1, 10, 0.1), 2, (0.1, 1.0), Limit.PARSING),
    ],
)
def test_the_limit_is_what_was_made_slow(
    trace: Trace, num_workers: int, parsing: tuple[float, float], limit: Limit
) -> None:
    prediction = predict(job_of(trace, num_workers, parsing))
    assert prediction.limit is limit
    assert prediction.gains[limit] == max(
        gain for each, gain in prediction.gains.items() if each is not Limit.LINKS or limit is Limit.LINKS
    )


def test_one_direction_is_named_if_it_brings_nearly_as_much_as_both() -> None:
    assert limit_of({Limit.DOWNLINK: 0.45, Limit.UPLINK: 0.1, Limit.LINKS: 0.5}) is Limit.DOWNLINK
    assert limit_of({Limit.DOWNLINK: 0.2, Limit.UPLINK: 0.2, Limit.LINKS: 0.5}) is Limit.LINKS
    assert limit_of({Limit.DOWNLINK: 0.01, Limit.COMPUTING: 0.0, Limit.LINKS: 0.01}) is None


def test_bands_widen_with_what_steps_vary_by_and_shares_stay_shares() -> None:
    calm, rough = (predict(job_of(chain(10, 2.0, 10, 0.1, spread), 1)) for spread in (0.0, 0.2))
    assert calm.samples_per_s.high - calm.samples_per_s.low < 1e-6 * calm.samples_per_s.value
    assert rough.samples_per_s.high - rough.samples_per_s.low > 0.02 * rough.samples_per_s.value
    for prediction in (calm, rough):
        for band in (prediction.communicating, prediction.exposed, prediction.uplink_use):
            assert 0.0 <= band.low <= band.value <= band.high <= 1.0


@pytest.mark.parametrize("num_workers", [2, 3, 6])
@pytest.mark.parametrize("spread", [0.0, 0.05])
def test_nine_of_ten_runs_that_start_at_random_are_in_the_band(num_workers: int, spread: float) -> None:
    # A step alone takes 4 s; whether workers meet on the links is decided by how they start.
    job = job_of(chain(100, 2.0, 100, 0.0, spread), num_workers)
    rng = np.random.default_rng(7)
    runs = []
    for seed in range(60):
        begins_s = tuple(rng.uniform(0.0, 4.0, num_workers))
        again = replace(job, settings=Settings(50, 1000 + seed, begins_s=begins_s))
        runs.append(figures_of(again, again.run())[0])
    assert np.ptp(runs) > 0.01 * np.mean(runs)  # so bands without width would not do
    bands = [predict(job.with_steps(200, seed), with_limit=False).samples_per_s for seed in range(12)]
    within = [band.low <= run <= band.high for run in runs for band in bands]
    assert 0.85 <= np.mean(within) < 1.0
    assert np.mean([band.value for band in bands]) == pytest.approx(np.mean(runs), rel=0.05)


def test_a_delay_is_not_computing_and_stays_on_faster_machines() -> None:
    trace = with_step_overhead(chain(1, 0.1, 1, 0.0), 5.0)
    prediction = predict(job_of(trace, 2))
    assert prediction.gains[Limit.COMPUTING] == pytest.approx(0.0, abs=0.02)
    assert prediction.limit is None


def test_shares_and_rates_count_from_when_each_worker_starts() -> None:
    # A step takes 1 s down and 1 s computing; worker 1 starts at 1 s, so they never meet on the link.
    trace = trace_of_steps(
        [
            TracedOperation("down", Resource.DOWNLINK, (), 100),
            TracedOperation("compute", Resource.WORKER, (0,)),
        ],
        [[0, 1]],
    )
    job = TracedJob(trace, like_machines(2, 1, 100.0), settings=Settings(4, begins_s=(0.0, 1.0)))
    replay = job.run()
    assert replay.steps_per_s(0) == pytest.approx(4 / 8 + 3 / 6)
    steps_per_s, _, communicating, exposed, _, _ = figures_of(job, replay)
    assert steps_per_s == pytest.approx(1.0)
    assert communicating == exposed == pytest.approx(8 / (8 + 7))


def test_a_stopped_forecast_ends_soon() -> None:
    stop = Stop()
    stop.set()
    job = replace(job_of(chain(10, 1.0, 10, 0.1), 100), settings=Settings(100_000))
    with pytest.raises(KeyboardInterrupt):
        predict(job, stop=stop)


def test_the_figures_of_one_worker_by_hand() -> None:
    # 1 s down, 2 s computing, 0.5 s up, 0.5 s applying.
    found = predict(job_of(chain(100, 2.0, 50, 0.5), 1), with_limit=False)
    assert found.samples_per_s.value == pytest.approx(8 / 4.0)
    assert found.step_s.value == pytest.approx(4.0)
    assert found.communicating.value == found.exposed.value == pytest.approx(1.5 / 4)
    assert found.downlink_use.value == pytest.approx(0.25)
    assert found.uplink_use.value == pytest.approx(0.125)
    assert (found.limit, found.gains) == (None, {})


def row(num_workers: int, samples_per_s: float, num_servers: int = 1) -> Prediction:
    band = Band(samples_per_s, samples_per_s, samples_per_s)
    none = Band(0.0, 0.0, 0.0)
    return Prediction(num_workers, num_servers, band, none, none, none, none, none, None, {})


def test_the_knee_is_where_no_larger_number_pays() -> None:
    assert knee([row(1, 10), row(2, 20), row(3, 26), row(4, 30), row(5, 31)], 10.0) == 3
    assert knee([row(1, 10), row(2, 12), row(3, 30), row(4, 31)], 10.0) == 3  # a dip is no knee
    assert knee([row(1, 10), row(2, 20), row(8, 60)], 10.0) is None
    assert knee([row(2, 20), row(8, 30)], 10.0) == 2
    assert knee([row(4, 20)], 10.0) is None


def test_the_cheapest_is_the_faster_one_of_equals() -> None:
    rows = [row(1, 10), row(2, 20), row(3, 25), row(2, 28, 2)]
    assert cheapest(rows, 22.0, Prices()) is rows[3]
    assert cheapest(rows, 22.0, Prices(1.0, 5.0)) is rows[2]
    assert cheapest(rows, 28.5, Prices()) is None


def test_a_timeline_has_every_chunk_on_the_track_of_its_resource() -> None:
    chunks: list[Chunk] = []
    trace = chain(100, 2.0, 50, 0.25)
    cluster = Topology((Links(100, 100),) * 2, (Links(100, 100),))
    simulate(trace, cluster, Settings(2), chunks.append)
    events = list(events_of(chunks, trace))
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == len(chunks)
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    in_order = sorted(chunks, key=lambda chunk: (chunk.begin_s, chunk.end_s))
    for event, chunk in zip(slices, in_order, strict=True):
        operation = trace.operations[chunk.operation]
        assert names[event["pid"], event["tid"]] == operation.resource
        assert event["ts"] == pytest.approx(1e6 * chunk.begin_s)
        assert event["args"] == {"step": chunk.step, "bytes": operation.num_bytes}
    check_tracks(slices)


def check_tracks(slices: list[dict[str, Any]]) -> None:
    """Nothing overlaps on a track."""
    by_track: dict[tuple[int, int], float] = {}
    for event in sorted(slices, key=lambda event: event["ts"]):
        track = event["pid"], event["tid"]
        assert by_track.get(track, 0.0) <= event["ts"] + 1e-2
        by_track[track] = event["ts"] + event["dur"]


@pytest.mark.parametrize("in_turn", [False, True])
def test_what_overlaps_is_shown_on_further_tracks(in_turn: bool) -> None:
    # The server's link is slower than the worker's: in turn, the second message leaves before the first has
    # arrived. Both delays pass at the same time.
    operations = [
        TracedOperation("a", Resource.UPLINK, (), 100),
        TracedOperation("b", Resource.UPLINK, (), 100),
        TracedOperation("wait a", Resource.DELAY, (0,), variable="a"),
        TracedOperation("wait b", Resource.DELAY, (0,), variable="b"),
    ]
    chunks: list[Chunk] = []
    cluster = Topology((Links(100, 100),), (Links(50, 50),))
    trace = trace_of_steps(operations, [[0.0, 0.0, 5.0, 5.0]])
    simulate(trace, cluster, Settings(3, in_turn=in_turn), chunks.append)
    events = list(events_of(chunks, trace))
    check_tracks([event for event in events if event["ph"] == "X"])
    titles = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert titles == ["uplink", *(["uplink (2)"] if in_turn else []), "delay", "delay (2)"]
    sorting = [event["args"]["sort_index"] for event in events if event["name"] == "thread_sort_index"]
    assert sorting == sorted(sorting)
