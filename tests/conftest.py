"""How tests are dealt out to workers that run side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling


WITH_SHARED_FIXTURES = ("tests/e2e/test_core_install.py",)
"""Files of end-to-end tests that make something costly once for all tests of the file."""


def group_of(nodeid: str) -> str:
    """Keep a file in one worker, for its fixtures, but deal out most end-to-end tests one by one."""
    file = nodeid.partition("::")[0]
    return nodeid if file.startswith("tests/e2e/") and file not in WITH_SHARED_FIXTURES else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Deal out tests in groups, in the order in which they are collected: what starts ranks comes first.

    The marks of `--dist loadgroup` cannot do this: pytest-xdist 3.8 writes them into node ids, and pytest 9.2
    ignores what is written there.
    """
    from xdist.scheduler import LoadScopeScheduling

    class InGroups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False
    return InGroups(config, log)
