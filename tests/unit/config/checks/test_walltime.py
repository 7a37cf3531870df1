"""A walltime in which a run may train nothing causes a warning that names its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbal.config import load_config

CONFIG = """\
defaults: {optimizer: {name: sgd, learning_rate: 0.1}, batch_size: 4, stop: {max_epochs: 2}}
dnns: [{name: a, model: "hpcbal.models:softmax"}]
walltime: %s
"""


@pytest.mark.parametrize(("walltime", "num_warnings"), [("5", 1), ("59.9", 1), ("60", 0), ("null", 0)])
def test_a_short_walltime_causes_a_warning(tmp_path: Path, walltime: str, num_warnings: int) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG % walltime, encoding="utf-8")
    warnings: list[str] = []
    load_config(path, warn=warnings.append)
    assert len(warnings) == num_warnings
    for warning in warnings:
        assert warning.startswith(
            f"{path}:3: walltime: got {walltime} s, and the last quarter is kept for saving"
        )


def test_a_short_walltime_of_the_command_line_is_named_too(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG % "null", encoding="utf-8")
    warnings: list[str] = []
    load_config(path, ["walltime=00:00:10"], warn=warnings.append)
    (warning,) = warnings
    assert warning.startswith("--set walltime=00:00:10: got 10 s")
