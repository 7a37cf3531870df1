"""The cache over real ranks: each reads what any has added, whole, and none writes over another's."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.mpi

NUM_SAMPLES, PASSES = 400, 4


def run_cache(mpi_run, num_ranks: int, share: float, *, differ: bool) -> list[float]:
    """Samples added and found by all ranks, samples held, bytes, hit rate."""
    arguments = json.dumps([NUM_SAMPLES, PASSES, share, differ])
    done = mpi_run(num_ranks, "sample_cache.py", arguments, timeout_s=120)
    assert done.returncode == 0, done.stdout + done.stderr
    numbers: list[float] = json.loads(done.stdout)
    return numbers


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("differ", [False, True])
def test_all_ranks_find_what_each_of_them_has_added(mpi_run, num_ranks: int, differ: bool):
    added, found, held, _, rate = run_cache(mpi_run, num_ranks, 1.0, differ=differ)
    assert rate == 1.0
    assert NUM_SAMPLES * 0.9 <= held <= NUM_SAMPLES
    if not differ and added == held:  # nobody made what another was just making
        assert held == NUM_SAMPLES
    # From the second pass on, each rank finds all that is held.
    assert found >= num_ranks * (PASSES - 1) * held * 0.9


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_a_full_cache_keeps_what_it_has(mpi_run, num_ranks: int):
    added, found, held, _, rate = run_cache(mpi_run, num_ranks, 0.4, differ=False)
    assert 0.2 < rate < 0.6
    assert held <= added <= rate * NUM_SAMPLES
    assert found >= num_ranks * (PASSES - 2) * held
