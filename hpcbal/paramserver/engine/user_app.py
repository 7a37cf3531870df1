"""Call a user's app, and say whose error it is if it raises one."""

from __future__ import annotations

from types import TracebackType

from hpcbal.errors import HpcbalError, UserCodeError
from hpcbal.paramserver.contract import App
from hpcbal.user_code import is_ctrl_c, summary


class calling:  # noqa: N801 - reads as a statement
    """Turn what the app raises in a `with` block into an error for the user; errors of our own pass.

    Raises:
        UserCodeError: the app has raised an exception, which is the `__cause__`.
    """

    __slots__ = ("_app", "_method")

    def __init__(self, app: App, method: str) -> None:
        self._app, self._method = app, method

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_users = isinstance(error, Exception | SystemExit | KeyboardInterrupt) and not is_ctrl_c(error)
        if is_users and not isinstance(error, HpcbalError):
            method = f"{type(self._app).__name__}.{self._method}"
            assert error is not None
            raise UserCodeError(f"{method}: {summary(error)}") from error
