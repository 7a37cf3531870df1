"""The kept recording is one of real workers; an iteration shows only what was known when it began."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.predictor_replay import Recording, load_recording

KEPT = Path(__file__).parents[2] / "data" / "contention.npz"
MOST_BYTES = 300_000


@pytest.fixture
def recording() -> Recording:
    rng = np.random.default_rng(0)
    times = rng.uniform(0.1, 0.2, (2, 5))
    cpu, memory = rng.uniform(0.0, 1.0, (2, 2, 5))
    return Recording(np.array([[20] * 5, [10] * 5]), times, cpu, memory, {"how": "made up"})


def test_the_kept_recording_is_of_real_workers_and_small() -> None:
    kept = load_recording(KEPT)
    num_workers, num_iterations = kept.num_samples.shape
    assert num_workers >= 3
    assert num_iterations >= 1500
    assert np.isfinite(kept.traces().speeds).all()
    assert ((kept.cpu >= 0.0) & (kept.cpu <= 1.0)).all()
    assert {"what", "how", "began", "seconds", "cores", "burner"} <= set(kept.about)
    assert KEPT.stat().st_size < MOST_BYTES


def test_an_iteration_begins_with_the_shares_at_the_end_of_the_one_before(recording: Recording) -> None:
    traces = recording.traces()
    assert traces.speeds.shape == traces.cpu.shape == traces.memory.shape == (2, 4)
    assert traces.speeds[1, 0] == 10 / recording.processing_s[1, 1]
    assert traces.cpu[1, 0] == recording.cpu[1, 0]
    assert traces.memory[0, 3] == recording.memory[0, 3]


@pytest.mark.parametrize("content", [None, b"", b"not an archive"])
def test_a_file_that_is_not_a_recording_is_refused(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "some.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SystemExit, match=r"no recording .* tests/data/contention\.npz is one"):
        load_recording(path)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(SystemExit, match="no recording"):
        load_recording(tmp_path / "other.npz")
