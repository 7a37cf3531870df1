"""How tests are dealt out to workers that run side by side, and what is done once for all of them."""

from __future__ import annotations

import compileall
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

PACKAGE = Path(__file__).parents[1] / "hpcbal"

WITH_SHARED_FIXTURES = (
    "tests/e2e/test_core_install.py",
    "tests/e2e/test_site_install.py",
    "tests/e2e/test_slurm.py",
)
"""Files of end-to-end tests that make something costly once for all tests of the file."""

FIRST = ("tests/e2e/", "tests/mpi/", "tests/unit/speed_models/", "tests/property/")
"""The folders of the longest tests come first, so that all workers end at about the same time."""


# Other tests run on the same cores, so an example may take any time; pytest-timeout ends those that hang.
hypothesis.settings.register_profile("hpcbal", deadline=None)
hypothesis.settings.load_profile("hpcbal")


def group_of(nodeid: str) -> str:
    """Keep a file in one worker, for its fixtures, but deal out most end-to-end tests one by one."""
    file = nodeid.partition("::")[0]
    return nodeid if file.startswith("tests/e2e/") and file not in WITH_SHARED_FIXTURES else file


def pytest_configure(config: pytest.Config) -> None:
    """Compile the package before any worker starts.

    With PYTHONDONTWRITEBYTECODE, as in many containers, each rank of each run would otherwise compile it.
    """
    if not hasattr(config, "workerinput") and PACKAGE.is_dir():
        compileall.compile_dir(PACKAGE, quiet=2)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest tests first; otherwise the order stays."""

    def place(item: pytest.Item) -> int:
        return next((i for i, start in enumerate(FIRST) if item.nodeid.startswith(start)), len(FIRST))

    items.sort(key=place)


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
