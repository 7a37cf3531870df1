"""`hpcbal launcher`: what job scripts ask."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcbal.cli.main import main
from hpcbal.cluster.job_end import START, UNDECIDED


def test_a_node_that_the_launcher_names_in_this_start_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The log is the stderr of the script; Slurm appends to that of earlier starts."""
    story = tmp_path / "end"
    monkeypatch.setenv("HPCBAL_END_FILE", str(story))
    story.write_text(f"{START}\n{UNDECIDED}\n")
    os.write(2, b"  Remote daemon: [prterun-n1-81@0,1] on node n2\n")
    assert main(["launcher", "--starting"]) == 0
    with story.open("a") as file:
        file.write(f"{START}\n{UNDECIDED}\n")
    said = []
    for line in (b"step 1\n", b"  Remote daemon: [prterun-n1-81@0,1] on node n3\n"):
        os.write(2, line)
        assert main(["launcher", "--ended", "0"]) == 0
        said.append(capfd.readouterr())
        os.write(2, said[-1].err.encode())  # a log is not emptied
    assert "a node, a rank or the launcher was lost" in said[0].err
    assert "the run has recorded no end: node n3 was lost, as the launcher says above" in said[1].err
    assert said[1].out == "1 end\n"
