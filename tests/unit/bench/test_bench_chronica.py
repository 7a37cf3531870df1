"""What dealing samples adds to a step is relative to dealing them in order."""

from __future__ import annotations

import numpy as np
import pytest
from ranks.dealing_overhead import WAYS, SizedNumbers, Way, WorkingReplica, figures_of_turn, take_steps
from support.dealing_overhead import shares_of
from workloads.unequal import Trial, Workers

from hpcbal.policies.samples.drawing import MEAN_SIZE, generated_sizes
from hpcbal.training.collective import LocalCollective


def test_a_share_is_what_the_critical_path_and_other_threads_add() -> None:
    rows = shares_of(
        {
            "in-order": [[0.5, 0.002, 0.0002, 0.0]] * 3,
            "within-batch sum": [[0.5, 0.003, 0.0005, 0.0012]] * 2 + [[9.0, 9.0, 9.0, 9.0]],
            "chronica": [[0.25, 0.001, 0.0002, 0.0010]] * 3,
        }
    )
    assert rows["in-order"]["share"] == 0.0
    within_batch = rows["within-batch sum"]
    assert within_batch["between_ms"] == pytest.approx(1.0)
    assert within_batch["beside_ms"] == pytest.approx(1.5)
    assert within_batch["share"] == pytest.approx(0.0025 / 0.5)
    assert rows["chronica"]["share"] == pytest.approx(0.001 / 0.25), "a shorter critical path is no gain"


def test_between_lasts_from_the_last_rank_to_the_last_rank() -> None:
    first = [[0.0, 1.0, 0.01], [1.25, 2.0, 0.03]]  # began, computed, fetched
    second = [[0.1, 0.9, 0.02], [1.50, 1.9, 0.01]]
    (row,) = figures_of_turn(np.array([first, second]), 0.005)
    assert row == pytest.approx([1.4, 0.5, 0.03, 0.005])


@pytest.mark.parametrize("name", WAYS)
def test_steps_of_the_bench_are_those_of_a_run(name: str) -> None:
    source = SizedNumbers(80)
    way = Way(name, source, LocalCollective(), 8)
    way.balancer.start()
    rows = take_steps(way, WorkingReplica(1e-6, [np.zeros(3, np.float32)], np.random.default_rng(0)), 5)
    way.close()
    assert (np.diff(rows[:, :2].ravel()) >= 0).all()
    assert (rows[:, 2] > 0).all()


def pass_s(method: str, speeds: list[float], dif: float) -> float:
    """Seconds of a second pass of 20 steps."""
    sizes = generated_sizes(20 * 8 * len(speeds), dif, seed=0)
    trial = Trial(method, sizes, Workers.of(speeds, MEAN_SIZE), samples_per_worker=8)
    return [trial.run_pass(number).seconds for number in range(2)][-1]


def test_counts_alone_balance_speeds_and_not_sizes() -> None:
    unlike, alike = [1.0, 1.0, 0.5, 0.5], [1.0] * 4
    assert pass_s("boa", unlike, 0.0) == pytest.approx(pass_s("within-batch", unlike, 0.0), rel=0.03)
    assert pass_s("boa", unlike, 0.0) < 0.8 * pass_s("random", unlike, 0.0)
    assert pass_s("boa", alike, 64.0) > 1.2 * pass_s("within-batch", alike, 64.0)
