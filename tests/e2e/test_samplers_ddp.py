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


ALONE = """\
import sentences_ddp
for epochs, state in ((3, "alone.pt"), (1, "both.pt")):
    sentences_ddp.main(epochs, state, 0)
"""


def python(folder: Path, *arguments: str, **environ: str) -> str:
    """Run Python in a folder, and return what it prints."""
    path = os.pathsep.join(map(str, (ROOT, EXAMPLE.parent)))
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
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
    """One process then trains alone, as long as both together, and goes on where two have stopped."""
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    printed = python(tmp_path, *launch, str(EXAMPLE), "2", "both.pt", "1")
    assert "2 ranks" in printed
    assert torch.load(tmp_path / "both.pt")["sampler"]["epoch"] == 2
    one = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    assert python(tmp_path, "-c", ALONE, **one).count("1 ranks") == 2
    alone, both = (weights(tmp_path / name) for name in ("alone.pt", "both.pt"))
    torch.testing.assert_close(both, alone, rtol=1e-10, atol=1e-10)
