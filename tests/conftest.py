"""How tests are dealt out to workers that run side by side, and what is done once for all of them."""

from __future__ import annotations

import compileall
import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

PACKAGE = Path(__file__).parents[1] / "hpcbal"

INSTALLS = "tests/e2e/test_core_install.py"
WITH_SHARED_FIXTURES = {
    INSTALLS: INSTALLS,
    "tests/e2e/test_site_install.py": INSTALLS,  # of the same wheel
    "tests/e2e/test_slurm.py": "tests/e2e/test_slurm.py",
    "tests/e2e/test_slurm_submit.py": "tests/e2e/test_slurm_submit.py",
}
"""Files of end-to-end tests that make something costly once for all tests of the group, and its name."""

LONG = (
    "tests/e2e/test_slurm_submit.py",
    "tests/e2e/test_slurm.py",
    "tests/e2e/test_python.py",
    "tests/e2e/test_run_torch.py",
    "tests/mpi/test_training_groups.py",
    "tests/e2e/test_core_install.py",
    "tests/e2e/",
    "tests/mpi/",
    "tests/property/",
)
"""Where the longest tests are, the longest first."""

OBJECTS_PER_SEARCH = 50_000
"""New objects between two searches for garbage. With Python's 700, tests of pure Python need a tenth more."""

# Several tests run on the same cores, where threads of one would only wait for each other; and Open MPI would
# sleep for a second where it finds no fast network. Ranks that are threads of a test share the threads of
# TensorFlow: a rank that waits for the others holds one, and with too few of them the others never come.
for variable, value in (("OMP_NUM_THREADS", "1"), ("OMPI_MCA_btl", "^ofi"), ("TF_NUM_INTEROP_THREADS", "8")):
    os.environ.setdefault(variable, value)
os.environ["HPCBAL_CALIBRATION"] = os.devnull  # runs of tests say nothing about those of the user

# A shell that starts the tests in the background lets them, and what they start, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Other tests run on the same cores, so an example may take any time; pytest-timeout ends those that hang.
# Each run of the suite draws other examples.
hypothesis.settings.register_profile("hpcbal", deadline=None, max_examples=20)
hypothesis.settings.load_profile("hpcbal")


@pytest.fixture(autouse=True)
def modules_of_this_test(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget a test's own modules and where they were found, so that the next test finds its own.

    Garbage is searched for rarely; runs in this process set the threshold back to Python's.
    """
    gc.set_threshold(OBJECTS_PER_SEARCH)
    path, finders, modules = list(sys.path), dict(sys.path_importer_cache), set(sys.modules)
    yield
    sys.path[:] = path
    sys.path_importer_cache.clear()
    sys.path_importer_cache.update(finders)
    own = str(tmp_path_factory.getbasetemp())
    for name in sys.modules.keys() - modules:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(own):
            del sys.modules[name]


def group_of(nodeid: str) -> str:
    """Keep a file in one worker, for its fixtures, but deal out most end-to-end tests one by one."""
    file = nodeid.partition("::")[0]
    return WITH_SHARED_FIXTURES.get(file, nodeid if file.startswith("tests/e2e/") else file)


def pytest_configure(config: pytest.Config) -> None:
    """Compile the package before any worker starts, and search for no garbage while tests are collected.

    With PYTHONDONTWRITEBYTECODE, as in many containers, each rank of each run would otherwise compile it.
    """
    gc.disable()
    if not hasattr(config, "workerinput") and PACKAGE.is_dir():
        compileall.compile_dir(PACKAGE, quiet=2)


def pytest_collection_finish() -> None:
    """Take what has been imported and collected out of the search for garbage: it stays to the end.

    Each full search would walk through ten thousand tests.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest tests first, and between them the others, which compute while those wait.

    So all workers end at about the same time, and no core has nothing to do.
    """
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(group_of(item.nodeid), []).append(item)

    def place(group: str) -> int:
        return next((i for i, start in enumerate(LONG) if group.startswith(start)), len(LONG))

    long = sorted((group for group in groups if place(group) < len(LONG)), key=place)
    short = [group for group in groups if place(group) == len(LONG)]
    order = []
    for number, group in enumerate(long):
        ended = number * len(short) // len(long), (number + 1) * len(short) // len(long)
        order += [group, *short[slice(*ended)]]
    items[:] = [item for group in order or short for item in groups[group]]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Deal out tests in groups, in the order in which they were collected.

    The marks of `--dist loadgroup` cannot do this: pytest-xdist 3.8 writes them into node ids, and pytest 9.2
    ignores what is written there.
    """
    from xdist.scheduler import LoadScopeScheduling

    class InGroups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False
    return InGroups(config, log)
