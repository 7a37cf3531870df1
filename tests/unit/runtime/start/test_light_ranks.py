"""Ranks that only talk, or preprocess, load no deep-learning library."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from pathlib import Path
import hpcbal.runtime.main
from hpcbal.config import load_config
from hpcbal.data.source import open_source
from hpcbal.runtime.start.table import RECIPES
assert "scheduler" in RECIPES
open_source(load_config(Path(sys.argv[1])))
print(*sorted({"tensorflow", "keras", "horovod"} & sys.modules.keys()))
"""


def test_scheduler_and_preprocessors_do_not_import_tensorflow(request) -> None:
    """Everything that a rank of any role imports, and the dataset; trainers load the rest in `prepare`."""
    config = request.config.rootpath / "configs" / "quickstart.yaml"
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(config)], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
