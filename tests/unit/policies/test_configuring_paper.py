"""The paper's own cost model: numbers by hand, and its optimum among all splits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.policies.configuring import Configuration, Machine, Problem, paper_epoch_s, paper_optimum


def problem_of(machines: list[Machine], num_samples: int = 1200, mini_batch: int = 10) -> Problem:
    """The model has 12 MB."""
    return Problem(tuple(machines), num_samples, 12, 12, mini_batch, "per_worker", 12e6, 12e6)


def test_an_epoch_by_hand() -> None:
    """Two workers of 600 samples take 60 turns each; servers hold 8 and 4 MB behind links of 4 and 1 MB/s.

    The second server needs 4 s for each worker, 8 for both; a worker needs 2 + 4 s for both servers.
    """
    worker, fast, slow = Machine(0.01, 1e7), Machine(1.0, 4e6), Machine(1.0, 1e6)
    problem = problem_of([worker, worker, fast, slow])
    even = Configuration.of_blocks([6, 6, 0, 0], [0, 0, 8, 4])
    assert paper_epoch_s(problem, even) == pytest.approx(6.0 + 60 * 8.0)
    alone = Configuration.of_blocks([12, 0, 0, 0], [0, 0, 8, 4])
    assert paper_epoch_s(problem, alone) == pytest.approx(12.0 + 120 * 6.0)


@given(st.integers(2, 12), st.floats(1e-4, 10.0))
def test_its_optimum_is_the_best_of_all_even_splits(count: int, seconds: float) -> None:
    machines = [Machine(seconds, 1e7)] * count
    problem = problem_of(machines, num_samples=27_720, mini_batch=1)
    found = paper_optimum(problem)

    def epoch_s(workers: int) -> float:
        """With even shares in real numbers: as many blocks as both sides divide."""
        servers = count - workers
        exact = Problem(tuple(machines), 27_720, 27_720, 27_720, 1, "per_worker", 12e6, 12e6)
        data, held = [27_720 // workers] * workers, [27_720 // servers] * servers
        return paper_epoch_s(exact, Configuration.of_blocks([*data, *[0] * servers], [*[0] * workers, *held]))

    assert epoch_s(found) <= min(epoch_s(workers) for workers in range(1, count)) * (1 + 1e-9)
