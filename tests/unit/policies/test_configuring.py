"""The cost model of parameter servers, and the configurations that minimise it."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from hpcbal.errors import PolicyError
from hpcbal.policies.configuring import heterogeneous
from hpcbal.policies.configuring.cost_model import Configuration, Machine, Problem, epoch_cost
from hpcbal.policies.configuring.heterogeneous import best_heterogeneous
from hpcbal.policies.configuring.homogeneous import best_homogeneous
from hpcbal.policies.configuring.metrics import measured_bandwidth

SLOW, FAST = Machine(1e-3, 1e8), Machine(2.5e-4, 4e8)


def problem_of(machines: list[Machine], turns: str = "per_worker", **changes: object) -> Problem:
    values: dict[str, object] = {
        "num_samples": 100_000,
        "num_data_blocks": 200,
        "num_parameter_blocks": 128,
        "mini_batch": 1_000,
        "turns": turns,
        "pull_bytes": 2e7,
        "push_bytes": 2e7,
    }
    return Problem(tuple(machines), **(values | changes))  # type: ignore[arg-type]


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to write `total` as so many positive numbers in order."""
    if parts == 1:
        yield (total,)
    else:
        for first in range(1, total - parts + 2):
            for rest in compositions(total - first, parts - 1):
                yield (first, *rest)


def all_configurations(problem: Problem) -> Iterator[Configuration]:
    num_machines = len(problem.machines)
    for roles in itertools.product(("worker", "server", "standby"), repeat=num_machines):
        workers = [i for i in range(num_machines) if roles[i] == "worker"]
        servers = [i for i in range(num_machines) if roles[i] == "server"]
        if not workers or not servers:
            continue
        for data in compositions(problem.num_data_blocks, len(workers)):
            for parameters in compositions(problem.num_parameter_blocks, len(servers)):
                d, m = dict(zip(workers, data, strict=True)), dict(zip(servers, parameters, strict=True))
                yield Configuration.of_blocks(
                    [d.get(i, 0) for i in range(num_machines)], [m.get(i, 0) for i in range(num_machines)]
                )


def small_problems(seed: int, number: int) -> Iterator[Problem]:
    rng = random.Random(seed)
    for _ in range(number):
        kinds = [
            Machine(rng.choice([1, 2, 3.3]), rng.choice([1.0, 2.0, 5.0]), rng.choice([0, 0, 0.8]))
            for _ in range(rng.choice([1, 2, 3]))
        ]
        turns = rng.choice(["shared", "per_worker"])
        yield Problem(
            tuple(rng.choice(kinds) for _ in range(rng.choice([2, 3, 4, 4]))),
            num_samples=rng.choice([12, 20, 31]),
            num_data_blocks=rng.choice([3, 5, 6]),
            num_parameter_blocks=rng.choice([2, 4, 5]),
            mini_batch=rng.choice([2, 5, 9]),
            turns=turns,
            pull_bytes=rng.choice([0, 1, 5.0]),
            push_bytes=rng.choice([1, 5.0, 20]),
            pull_bytes_per_sample=rng.choice([0, 1.0]),
            push_bytes_per_sample=rng.choice([0, 0.3]),
            has_barrier=turns == "shared" and rng.choice([False, True]),
            turn_overhead_s=rng.choice([0, 0.5]),
        )


def test_the_longer_of_own_and_served_time_counts() -> None:
    """Two workers of seven and three blocks, two servers of three quarters and one quarter of the model."""
    machines = [Machine(1e-3, 1e6), Machine(2e-3, 1e6), Machine(1e-3, 1e6), Machine(1e-3, 1e6)]
    for megabytes in (0.02, 0.2):
        problem = problem_of(
            machines, num_samples=1000, num_data_blocks=10, num_parameter_blocks=4, mini_batch=150,
            pull_bytes=megabytes * 1e6, push_bytes=megabytes * 2e6,
        )  # fmt: skip
        cost = epoch_cost(problem, Configuration.of_blocks([7, 3, 0, 0], [0, 0, 3, 1]))
        turns = [math.ceil(700 / 150), math.ceil(300 / 150)]
        own = [0.7 + turns[0] * 3 * megabytes, 0.6 + turns[1] * 3 * megabytes]
        served = [t * 2 * 0.75 * 2 * megabytes for t in turns]  # pushes are the busier way
        assert cost.compute_s == pytest.approx([0.7, 0.6, 0, 0])
        assert cost.worker_s == pytest.approx([*map(max, own, served), 0, 0])
        assert cost.epoch_s == pytest.approx(max(own[0], served[0]))


def test_a_worker_behind_a_slow_link_does_not_slow_the_server_down_for_others() -> None:
    machines = [Machine(1e-3, 1e6), Machine(1e-3, 1e8), Machine(1e-3, 1e8)]
    problem = problem_of(machines, pull_bytes=1e9, push_bytes=1e9)
    cost = epoch_cost(problem, Configuration.of_blocks([100, 100, 0], [0, 0, 128]))
    assert cost.worker_s[0] == pytest.approx(50 + 50 * 2e9 / 1e6)  # its own link
    both = problem_of(machines, pull_bytes=1e9, push_bytes=1e8)
    cost = epoch_cost(both, Configuration.of_blocks([100, 100, 0], [0, 0, 128]))
    assert cost.worker_s[1] == pytest.approx(50 * 2 * 1e9 / 1e8)  # the server's link, for both


def test_shared_turns_take_every_worker_through_every_step() -> None:
    problem = problem_of([SLOW] * 3, "shared", pull_bytes_per_sample=100.0, turn_overhead_s=0.01)
    cost = epoch_cost(problem, Configuration.of_blocks([150, 50, 0], [0, 0, 128]))
    own = [(100 * 4e7 + samples * 100.0) / 1e8 + 1 for samples in (75_000, 25_000)]
    assert cost.compute_s[:2] == pytest.approx([75, 25])
    assert cost.communication_s[:2] == pytest.approx(own)


def test_behind_a_barrier_a_worker_waits_for_the_others_to_be_served() -> None:
    problem = problem_of([SLOW] * 5, "shared", has_barrier=True, push_bytes=1e7)
    cost = epoch_cost(problem, Configuration.of_blocks([70, 70, 60, 0, 0], [0, 0, 0, 96, 32]))
    waiting = 100 * 2 * 0.75 * 2e7 / 1e8
    assert cost.communication_s[:3] == pytest.approx([100 * 3e7 / 1e8 + waiting] * 3)
    alone = epoch_cost(problem, Configuration.of_blocks([200, 0, 0, 0, 0], [0, 128, 0, 0, 0]))
    assert alone.communication_s[0] == pytest.approx(100 * 3e7 / 1e8)


def test_a_barrier_needs_shared_turns() -> None:
    with pytest.raises(PolicyError, match="has_barrier"):
        problem_of([SLOW] * 2, has_barrier=True)


def test_a_slow_processor_serves_the_bytes_of_both_ways() -> None:
    server = Machine(1e-9, 1e8, service_s_per_byte=1e-7)
    problem = problem_of([Machine(1e-9, 1e8)] * 3 + [server])
    cost = epoch_cost(problem, Configuration.of_blocks([100, 50, 50, 0], [0, 0, 0, 128]))
    assert cost.worker_s[0] == pytest.approx(50 * 3 * 4e7 * 1e-7)


def analytic_epoch_s(problem: Problem, num_workers: int) -> float:
    """Epoch time of equal machines with even shares in real numbers: [PS] Eq. 3.5, see `epoch_cost`."""
    machine, samples = problem.machines[0], problem.num_samples / num_workers
    turns = samples / problem.mini_batch if problem.turns == "per_worker" else problem.shared_turns
    own_s = samples * machine.seconds_per_sample
    own_s += turns * (problem.pull_bytes + problem.push_bytes) / machine.bandwidth
    per_server = num_workers / (len(problem.machines) - num_workers)
    longer_way = max(problem.pull_bytes, problem.push_bytes) / machine.bandwidth
    return max(own_s, turns * per_server * longer_way)


@pytest.mark.parametrize("turns", ["per_worker", "shared"])
def test_equal_machines_have_the_optimum_of_eq_3_5(turns: str) -> None:
    """With blocks that divide evenly, rounding changes nothing."""
    problem = problem_of(
        [SLOW] * 24, turns, num_samples=5_354_228_880, num_data_blocks=5_354_228_880 // 10,
        num_parameter_blocks=5_354_228_880, mini_batch=1_000_000, pull_bytes=1e9, push_bytes=1e9,
    )  # fmt: skip
    analytic = {w: analytic_epoch_s(problem, w) for w in range(1, 24)}
    chosen = best_homogeneous(problem)
    assert len(chosen.workers) == min(analytic, key=lambda w: analytic[w])
    assert epoch_cost(problem, chosen).epoch_s == pytest.approx(min(analytic.values()), rel=1e-3)


@pytest.mark.parametrize("turns", ["per_worker", "shared"])
def test_equal_machines_need_no_search(turns: str) -> None:
    for num_machines in range(2, 40):
        problem = problem_of([SLOW] * num_machines, turns, turn_overhead_s=0.003)
        even = epoch_cost(problem, best_homogeneous(problem)).epoch_s
        assert best_heterogeneous(problem).epoch_s == pytest.approx(even, rel=1e-9)


def test_the_choice_costs_what_brute_force_finds() -> None:
    for problem in small_problems(seed=5, number=60):
        least = min(epoch_cost(problem, c).epoch_s for c in all_configurations(problem))
        choice = best_heterogeneous(problem)
        assert choice.epoch_s == pytest.approx(least, rel=1e-9), problem
        assert epoch_cost(problem, choice.configuration).epoch_s == pytest.approx(least, rel=1e-9)


def test_the_local_search_keeps_to_its_bound_and_comes_close(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = [best_heterogeneous(problem).epoch_s for problem in small_problems(seed=6, number=60)]
    monkeypatch.setattr(heterogeneous, "_MOST_CASES", 0)
    local = [best_heterogeneous(problem) for problem in small_problems(seed=6, number=60)]
    for choice, least in zip(local, exact, strict=True):
        assert choice.lower_bound_s <= least * (1 + 1e-9)
        assert choice.epoch_s >= least * (1 - 1e-9)
    assert sum(choice.epoch_s <= least * (1 + 1e-9) for choice, least in zip(local, exact, strict=True)) >= 54


def least_by_milp(problem: Problem, num_workers: int) -> float:
    """The shortest epoch with shared turns, by HiGHS: linear, because the number of workers is fixed."""
    machines, n = problem.machines, len(problem.machines)
    data, parameters = problem.num_data_blocks, problem.num_parameter_blocks
    turns, moved = problem.shared_turns, problem.shared_turns * problem.turn_bytes
    size = problem.samples_per_block
    large = 1e4
    # Variables: x (is a worker), d, m, the time to serve, the epoch.
    served, epoch = 3 * n, 3 * n + 1
    rows, low, high = [], [], []

    def add(entries: dict[int, float], least: float, most: float) -> None:
        row = np.zeros(3 * n + 2)
        for column, value in entries.items():
            row[column] += value
        rows.append(row)
        low.append(least)
        high.append(most)

    add(dict.fromkeys(range(n), 1.0), num_workers, num_workers)
    add(dict.fromkeys(range(n, 2 * n), 1.0), data, data)
    add(dict.fromkeys(range(2 * n, 3 * n), 1.0), parameters, parameters)
    for i, machine in enumerate(machines):
        add({n + i: 1, i: -data}, -np.inf, 0)
        add({n + i: 1, i: -1}, 0, np.inf)
        add({2 * n + i: 1, i: parameters}, -np.inf, parameters)
        serve_s = num_workers * moved * problem.serve_s_per_byte(machine) / parameters
        add({served: 1, 2 * n + i: -serve_s}, 0, np.inf)
        compute = {n + i: -machine.seconds_per_sample * size, i: -large, epoch: 1}
        links = {
            2 * n + j: -moved / parameters / min(machine.bandwidth, other.bandwidth)
            for j, other in enumerate(machines)
        }
        add(compute | links, turns * problem.turn_overhead_s - large, np.inf)
    add({epoch: 1, served: -1}, 0, np.inf)
    cost = np.zeros(3 * n + 2)
    cost[epoch] = 1
    upper = np.array([1] * n + [data] * n + [parameters] * n + [np.inf, np.inf])
    solution = milp(
        cost,
        constraints=LinearConstraint(np.array(rows), low, high),
        integrality=np.array([1] * (3 * n) + [0, 0]),
        bounds=Bounds(np.zeros(3 * n + 2), upper),
        options={"time_limit": 20.0, "mip_rel_gap": 1e-6},
    )
    return math.inf if solution.x is None else float(solution.fun)


def test_the_choice_costs_no_more_than_a_mixed_integer_program_finds() -> None:
    machines = [Machine(1e-3, 1e8)] * 4 + [Machine(3e-4, 3e8)] * 2 + [Machine(2e-3, 5e7)] * 2
    problem = problem_of(machines, "shared", num_data_blocks=30, num_parameter_blocks=16, num_samples=60_000)
    least = min(least_by_milp(problem, num_workers) for num_workers in range(1, len(machines)))
    assert best_heterogeneous(problem).epoch_s <= least * (1 + 1e-6)


def test_hundreds_of_machines_of_several_kinds_come_within_a_percent_of_the_bound() -> None:
    kinds = [Machine(1e-3, 1e8), Machine(5e-4, 1e8), Machine(3e-4, 4e8)]
    problem = problem_of([kind for kind in kinds for _ in range(100)], "shared", num_data_blocks=6000,
                         num_parameter_blocks=4096)  # fmt: skip
    assert best_heterogeneous(problem).gap <= 0.01


def test_memory_limits_are_kept() -> None:
    small = Machine(1e-3, 1e8, memory_bytes=3e7)
    problem = problem_of([small] * 4 + [FAST] * 2, model_bytes=1e8, sample_bytes=1e4, pull_bytes=1e7)
    configuration = best_heterogeneous(problem).configuration
    for machine, data, parameters in zip(
        problem.machines, configuration.data_blocks, configuration.parameter_blocks, strict=True
    ):
        assert data * 500 * 1e4 + (1e7 if data else 0) <= machine.memory_bytes
        assert parameters * 1e8 / 128 <= machine.memory_bytes


def test_a_slow_link_leaves_a_machine_without_a_model_rather_than_with_all() -> None:
    problem = problem_of([FAST] * 2 + [Machine(1.0, 1.0)])
    configuration = best_heterogeneous(problem).configuration
    assert configuration.roles[2] == "standby"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Machine(0.0, 1.0), "seconds_per_sample"),
        (lambda: Machine(1.0, math.inf), "bandwidth"),
        (lambda: problem_of([SLOW], num_data_blocks=0), "num_data_blocks"),
        (lambda: problem_of([SLOW], "often"), "turns"),
        (lambda: Configuration(("worker", "server"), (1, 1), (0, 1)), "machine 1"),
        (
            lambda: epoch_cost(problem_of([SLOW] * 2), Configuration.of_blocks([1, 0], [0, 1])),
            "1 data blocks",
        ),
        (lambda: best_homogeneous(problem_of([SLOW, FAST])), "best_heterogeneous"),
        (lambda: best_homogeneous(problem_of([SLOW])), "at least 2"),
        (lambda: best_heterogeneous(problem_of([SLOW])), "add executors"),
        (
            lambda: best_heterogeneous(
                problem_of([Machine(1.0, 1.0, memory_bytes=1.0)] * 4, model_bytes=1e9)
            ),
            "memory",
        ),
    ],
)
def test_what_is_impossible_is_an_error_that_says_what_to_do(call: object, words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        call()  # type: ignore[operator]


@pytest.mark.parametrize("seconds", [1e-6, 1e-4, 1e-3])
@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (2, 4), (4, 4), (5, 1), (7, 3)])
@pytest.mark.parametrize("mode", ["sync", "stale", "async"])
def test_the_bandwidth_is_that_with_which_the_cost_model_says_what_was_measured(
    workers: int, servers: int, seconds: float, mode: str
) -> None:
    bandwidth, turn_bytes = 1e7, 160_000.0
    is_sync = mode == "sync"
    problem = Problem(
        (Machine(seconds, bandwidth),) * (workers + servers),
        num_samples=840 * workers,
        num_data_blocks=workers,
        num_parameter_blocks=12 * servers,
        mini_batch=84 if mode == "async" else 84 * workers,
        turns="per_worker" if mode == "async" else "shared",
        pull_bytes=turn_bytes / 2,
        push_bytes=turn_bytes / 2,
        has_barrier=is_sync,
    )
    cost = epoch_cost(
        problem, Configuration.of_blocks([1] * workers + [0] * servers, [0] * workers + [12] * servers)
    )
    turn_s = cost.communication_s[0] / 10
    found = measured_bandwidth(turn_bytes, workers, 1 / servers, turn_s, 84 * seconds, is_sync)
    assert found == pytest.approx(bandwidth)
