"""Whose error it is that ends a call of a user's app."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hpcbal.errors import UserCodeError
from hpcbal.paramserver.api.checks import calling

APP: Any = cast(Any, SimpleNamespace())


def test_ctrl_c_during_a_call_is_not_the_apps_error() -> None:
    """As in `hpcbal simulate`, which stops."""
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt), calling(APP, "needs"):
        raise KeyboardInterrupt


def test_an_app_that_raises_it_on_a_rank_fails_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks catch the signal."""
    monkeypatch.setattr(signal, "getsignal", lambda number: print)
    expected = r"SimpleNamespace\.needs: .*KeyboardInterrupt"
    with pytest.raises(UserCodeError, match=expected), calling(APP, "needs"):
        raise KeyboardInterrupt
