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


def run(folder: Path, files: list[str], *options: str) -> str:
    """Run pytest with this project's conftest.py on files of four tests each, and return what it prints."""
    for name in files:
        path = folder / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(FOUR_TESTS, encoding="utf-8")
    shutil.copy(CONFTEST, folder / "tests")
    (folder / "pytest.ini").touch()
    command = [sys.executable, "-m", "pytest", *options, "tests"]
    environ = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_a_file_stays_in_one_worker_but_for_end_to_end_tests(tmp_path: Path) -> None:
    files = ["unit/test_a.py", "mpi/test_b.py", "e2e/test_c.py"]
    printed = run(tmp_path, files, "-v", "-n", "2", "-p", "xdist.plugin")
    dealt = re.findall(r"\[(gw\d)\] \[.*\] PASSED tests/(\w+)", printed)
    assert len(dealt) == 12, printed
    workers = {folder: {worker for worker, other in dealt if other == folder} for _, folder in dealt}
    assert {folder: len(who) for folder, who in workers.items()} == {"unit": 1, "mpi": 1, "e2e": 2}


def test_short_tests_are_dealt_out_between_the_long_ones(tmp_path: Path) -> None:
    files = [f"unit/test_{letter}.py" for letter in "abcd"]
    printed = run(tmp_path, [*files, "e2e/test_run.py"], "--collect-only", "-q")
    order = [
        (folder, file) for folder, file in re.findall(r"^tests/(\w+)/(\w+)\.py::", printed, re.MULTILINE)
    ]
    wanted = [[("e2e", "test_run"), *[("unit", f"test_{letter}")] * 4] for letter in "abcd"]
    assert order == [each for part in wanted for each in part], printed
