"""How tests are dealt out to workers that run side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

END_TO_END = Path(__file__).parent / "e2e"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Keep a file in one worker, for its fixtures, but deal out end-to-end tests one by one."""
    for item in items:
        if not item.path.is_relative_to(END_TO_END):
            item.add_marker(pytest.mark.xdist_group(str(item.path.relative_to(END_TO_END.parent))))
