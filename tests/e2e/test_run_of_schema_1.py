"""A run directory that an earlier hpcbal left is continued to its end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

BEFORE = Path(__file__).parents[1] / "data" / "run_of_schema_1"


def test_a_run_of_schema_1_is_continued_to_its_end(lab: Any) -> None:
    for name in ("run.yaml", "out"):
        source = BEFORE / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, lab.folder / name)
    done = lab.run("run", "run.yaml")
    assert done.code == 0, done
    assert {name: (row.state, row.epochs) for name, row in lab.results().items()} == {
        "wide": ("done", 6),
        "small": ("done", 3),
        "late": ("done", 4),
    }
    assert {line.dnn for line in lab.events("epoch-done")[9:]} == {"wide"}
    lines = (lab.out / "ledger.jsonl").read_text(encoding="utf-8").splitlines()
    schemas = [json.loads(line)["schema"] for line in lines]
    assert schemas == [1] * 49 + [2] * (len(lines) - 49)
