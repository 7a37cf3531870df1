"""The cache over real ranks: each reads what any has added, whole, and none writes over another's."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.mpi


def test_all_ranks_find_what_each_of_them_has_added_and_a_full_cache_keeps_what_it_has(mpi_run):
    """Two and three ranks; samples of one size and of different ones, and a cache that takes 0.4 of them."""
    done = mpi_run(3, "sample_cache.py", timeout_s=120)
    passed = ["passed whole", "passed ragged", "passed full"] * 2
    assert (done.returncode, done.stdout.splitlines()) == (0, passed), done.stdout + done.stderr
