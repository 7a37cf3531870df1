"""The balanced sampler in real DistributedDataParallel runs: the example of its page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs/examples/sentences_ddp.py"


def train(num_ranks: int, epochs: int, state: Path, num_workers: int = 0) -> str:
    """Run the example, and return what it prints; torchrun, which takes seconds, starts several ranks."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = subprocess.run(
        [
            sys.executable,
            *(torchrun if num_ranks > 1 else []),
            *(str(EXAMPLE), str(epochs), str(state), str(num_workers)),
        ],
        env={
            **os.environ,
            **(alone if num_ranks == 1 else {}),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def weights(state: Path) -> torch.Tensor:
    return torch.cat([weight.ravel() for weight in torch.load(state)["model"].values()])


def test_the_page_shows_the_example_that_is_run() -> None:
    assert f"```python\n{EXAMPLE.read_text()}```\n" in (ROOT / "docs/samplers.md").read_text()


@pytest.mark.e2e
@pytest.mark.timeout(280)
def test_two_ranks_train_as_one_does_and_go_on_from_its_state(tmp_path: Path) -> None:
    alone, both = tmp_path / "alone.pt", tmp_path / "both.pt"
    assert "1 ranks" in train(1, 3, alone)
    assert "2 ranks" in train(2, 2, both, num_workers=1)
    assert torch.load(both)["sampler"]["epoch"] == 2
    assert "1 ranks" in train(1, 1, both)
    torch.testing.assert_close(weights(both), weights(alone), rtol=1e-10, atol=1e-10)
