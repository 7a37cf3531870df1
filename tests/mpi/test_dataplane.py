"""The shared stream over real ranks: every reader gets every sample, once, in order, from few reads."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

pytestmark = pytest.mark.mpi

NO_WARNINGS = {"PYTHONWARNINGS": "error"}
BLOCK_SAMPLES = 8
NUM_POSITIONS = 61


def run_stream(mpi_run, **settings) -> list[Counter[tuple[int, int]]]:
    """Per round, how often each (id, pass) was asked of the source, over all producers."""
    num_ranks = sum(map(sum, settings["nodes"]))
    done = mpi_run(num_ranks, "dataplane_stream.py", json.dumps(settings), env=NO_WARNINGS)
    assert done.returncode == 0, done.stdout + done.stderr
    rounds = []
    for reads in json.loads(done.stdout):
        counts: Counter[tuple[int, int]] = Counter()
        for sample_id, pass_index, num in reads:
            counts[sample_id, pass_index] += num
        rounds.append(counts)
    return rounds


def check_made_once(counts: Counter[tuple[int, int]], passes: range) -> None:
    """Each sample of these passes once, and what was made ahead not twice either."""
    for pass_index in passes:
        assert all(counts[i, pass_index] == 1 for i in range(NUM_POSITIONS))
    assert set(counts.values()) == {1}


@pytest.mark.parametrize(
    "settings",
    [
        {"nodes": [[1, 1]]},
        {"nodes": [[1, 4]], "steps": [1, 7, 8, 13, 24], "delays_s": [0, 0.004, 0]},
        {"nodes": [[3, 2]], "steps": [16, 5], "bad_every": 5},
        {"nodes": [[2, 2]], "shape": [None, 3], "bad_every": 4, "steps": [10]},
        {"nodes": [[1, 1], [1, 1], [1, 1]], "steps": [9, 17], "delays_s": [0, 0.003, 0]},
        {"nodes": [[1, 2], [2, 1], [1, 0]], "shape": [None, 3], "bad_every": 5},
        {"nodes": [[2, 1], [1, 2]], "shape": [40, 200], "slots": 2, "steps": [3]},
    ],
    ids=["1x1", "speeds", "three-producers", "ragged", "three-nodes", "ragged-nodes", "large-messages"],
)
def test_every_reader_gets_every_valid_sample_and_each_is_made_once(mpi_run, settings: dict):
    (counts,) = run_stream(mpi_run, **settings)
    check_made_once(counts, range(3))


def test_readers_may_start_inside_a_pass(mpi_run):
    offsets = [5, 48, 60, 61]
    rounds = run_stream(mpi_run, nodes=[[2, 1], [1, 1]], first_pass=2, offsets=offsets, passes=2)
    for offset, counts in zip(offsets, rounds, strict=True):
        check_made_once(counts, range(3, 4))
        num_in_first_pass = sum(pass_index == 2 for _, pass_index in counts)
        skipped = offset - offset % BLOCK_SAMPLES if offset < NUM_POSITIONS else NUM_POSITIONS
        assert num_in_first_pass == NUM_POSITIONS - skipped


def test_limits_and_wrong_calls(mpi_run):
    done = mpi_run(6, "dataplane_limits.py", env=NO_WARNINGS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "recycled_memory_is_used" in done.stdout


@pytest.mark.parametrize(
    ("nodes", "shape"),
    [
        ([[1, 1], [2, 1], [1, 1]], [5, 3]),
        ([[2, 2], [2, 0]], [None, 300]),
        ([[2, 2], [1, 1]], [64, 300]),
    ],
    ids=["three-nodes", "one-node-trains", "large-messages"],
)
def test_rounds_stopped_at_random_leave_nothing_behind(mpi_run, nodes: list, shape: list):
    num_ranks = sum(map(sum, nodes))
    arguments = json.dumps(nodes), 40, 7, json.dumps(shape)
    done = mpi_run(num_ranks, "dataplane_restarts.py", *arguments, env=NO_WARNINGS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("rounds 40 ")


@pytest.fixture
def busy_core() -> Iterator[None]:
    """Another process that takes what it can of a core."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as burner:
        yield
        burner.kill()


def test_it_holds_beside_other_work(mpi_run, busy_core: None):
    (counts,) = run_stream(mpi_run, nodes=[[2, 2], [1, 1]], bad_every=9, steps=[7])
    check_made_once(counts, range(3))
