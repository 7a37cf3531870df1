"""Tests that share costly fixtures stay in one of the workers that run side by side."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).parents[1] / "conftest.py"
FOUR_TESTS = "import pytest\n\n@pytest.mark.parametrize('n', range(4))\ndef test_it(n):\n    pass\n"


def test_a_file_stays_in_one_worker_but_for_end_to_end_tests(tmp_path: Path) -> None:
    for name in ("unit/test_a.py", "mpi/test_b.py", "e2e/test_c.py"):
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True)
        path.write_text(FOUR_TESTS, encoding="utf-8")
    shutil.copy(CONFTEST, tmp_path / "tests")
    (tmp_path / "pytest.ini").touch()
    command = [sys.executable, "-m", "pytest", "-v", "-n", "2", "-p", "xdist.plugin", "tests"]
    environ = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    dealt = re.findall(r"\[(gw\d)\] \[.*\] PASSED tests/(\w+)", done.stdout)
    assert len(dealt) == 12, done.stdout + done.stderr
    workers = {folder: {worker for worker, other in dealt if other == folder} for _, folder in dealt}
    assert {folder: len(who) for folder, who in workers.items()} == {"unit": 1, "mpi": 1, "e2e": 2}
