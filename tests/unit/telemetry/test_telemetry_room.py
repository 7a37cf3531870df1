"""The room's public names, which are loaded when they are first used."""

from __future__ import annotations

import pytest

from hpcbal import telemetry


@pytest.mark.parametrize("name", telemetry.__all__)
def test_every_public_name_exists(name: str) -> None:
    assert getattr(telemetry, name) is not None
