"""Links that all transfers share: the tuner's model against the forecast, which simulates each transfer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from traces import like_machines

from hpcbal.forecast import Settings, Trace, simulate
from hpcbal.forecast.trace import Resource, TracedOperation, on_servers
from hpcbal.paramserver.api.update import Table
from hpcbal.policies.batching import split_evenly
from hpcbal.policies.configuring.cost_model import Configuration, Links, Machine, Problem, epoch_cost
from hpcbal.policies.configuring.homogeneous import best_homogeneous
from hpcbal.policies.configuring.metrics import measured_bandwidth
from hpcbal.policies.configuring.trigger import best_configuration
from hpcbal.simulator.paramserver.job import ServingJob, ServingMachine
from hpcbal.simulator.paramserver.run import simulate_roles

BYTES, SAMPLE_S, BATCH, RATE = 1_525_000, 0.241e-3, 10, 100e6
BLOCKS = 240


def problem(links: Links, machines: int, sample_s: float = SAMPLE_S, has_barrier: bool = False) -> Problem:
    return Problem(
        (Machine(sample_s, RATE),) * machines,
        num_samples=BLOCKS * 100,
        num_data_blocks=BLOCKS,
        num_parameter_blocks=BLOCKS,
        mini_batch=BATCH,
        turns="shared" if has_barrier else "per_worker",
        pull_bytes=BYTES,
        push_bytes=BYTES,
        has_barrier=has_barrier,
        links=links,
    )


def configuration(workers: int, servers: int) -> Configuration:
    data, parameters = split_evenly(BLOCKS, workers), split_evenly(BLOCKS, servers)
    return Configuration.of_blocks([*data, *[0] * servers], [*[0] * workers, *parameters])


def rate(of: Problem, workers: int, servers: int) -> float:
    """Samples/s."""
    return of.num_samples / epoch_cost(of, configuration(workers, servers)).epoch_s


def forecast(workers: int, servers: int, sample_s: float = SAMPLE_S) -> float:
    """Samples/s on shared links, of steps that vary by a tenth."""
    durations = np.zeros((50, 3))
    durations[:, 1] = BATCH * sample_s * np.random.default_rng(0).uniform(0.9, 1.1, 50)
    operations = (
        TracedOperation("pull", Resource.DOWNLINK, (), BYTES, variable="w"),
        TracedOperation("compute", Resource.WORKER, (0,)),
        TracedOperation("push", Resource.UPLINK, (1,), BYTES, variable="w"),
    )
    trace = on_servers(Trace(operations, durations, BATCH, splits=True), servers)
    run = simulate(trace, like_machines(workers, servers, RATE), Settings(400, window_bytes=float("inf")))
    return BATCH * run.steps_per_s(100)


@pytest.mark.parametrize("sample_s", [SAMPLE_S, 10 * SAMPLE_S])
@pytest.mark.parametrize("machines", [4, 6, 8])
def test_shared_links_are_predicted_as_the_forecast_simulates_them(machines: int, sample_s: float) -> None:
    """Links in turn let expect up to 1.55 times as much."""
    of = problem("shared", machines, sample_s)
    found = {workers: forecast(workers, machines - workers, sample_s) for workers in range(1, machines)}
    for workers, expected in found.items():
        assert rate(of, workers, machines - workers) == pytest.approx(expected, rel=0.15)
    chosen = len(best_homogeneous(of).workers)
    assert found[chosen] >= 0.94 * max(found.values())


def test_what_is_chosen_depends_on_how_links_carry_messages() -> None:
    in_turn, shared = problem("in_turn", 4), problem("shared", 4)
    assert (round(rate(in_turn, 3, 1)), round(rate(shared, 3, 1)), round(rate(shared, 2, 2))) == (
        656,
        482,
        608,
    )
    assert [len(best_configuration(each).workers) for each in (in_turn, shared)] == [3, 2]


def test_with_a_barrier_all_pull_at_once_and_push_at_once() -> None:
    shared = problem("shared", 4, has_barrier=True)
    steps, one_way_s = BLOCKS * 100 / BATCH, BYTES / RATE
    for workers, servers, times in ((3, 1, 3), (2, 2, 1), (1, 3, 1)):
        expected_s = steps * (BATCH / workers * SAMPLE_S + 2 * times * one_way_s)
        assert epoch_cost(shared, configuration(workers, servers)).epoch_s == pytest.approx(expected_s)


@pytest.mark.parametrize("has_barrier", [False, True])
@pytest.mark.parametrize("links", ["shared", "in_turn"])
@pytest.mark.parametrize(("workers", "servers"), [(1, 3), (3, 1), (6, 2), (4, 4), (5, 3)])
def test_the_bandwidth_is_what_explains_a_turn(
    links: Links, workers: int, servers: int, has_barrier: bool
) -> None:
    of = problem(links, workers + servers, has_barrier=has_barrier)
    cost = epoch_cost(of, configuration(workers, servers))
    turns = of.num_turns(of.num_samples / workers)
    seconds, samples = (cost.communication_s[0] / turns, cost.compute_s[0] / turns)
    found = measured_bandwidth(2 * BYTES, workers, 1 / servers, seconds, samples, has_barrier, links)
    assert found == pytest.approx(RATE)


def test_among_unlike_machines_shared_links_ask_for_more_servers() -> None:
    fast = Machine(SAMPLE_S / 1.2, RATE)
    unlike = {
        links: replace(problem(links, 4), machines=(Machine(SAMPLE_S, RATE),) * 3 + (fast,))
        for links in ("shared", "in_turn")
    }
    chosen = {links: best_configuration(each) for links, each in unlike.items()}
    assert {links: len(each.workers) for links, each in chosen.items()} == {"shared": 2, "in_turn": 3}


@pytest.mark.parametrize(("workers", "servers"), [(3, 1), (2, 2), (1, 3)])
def test_the_simulator_shares_links_as_the_forecast_does(workers: int, servers: int) -> None:
    """Links in turn let expect 1.54 times as much of three workers and a server."""
    table = Table("w", BYTES // 4, 1, "float32")
    job = ServingJob(2400, BLOCKS, BATCH, None, (table,), (BLOCKS,), max_epochs=4)
    machines = [ServingMachine(SAMPLE_S, RATE)] * 4
    run = simulate_roles(job, machines, workers, servers, are_shared=True)
    assert job.num_samples / run.steady_epoch_s == pytest.approx(forecast(workers, servers), rel=0.1)
