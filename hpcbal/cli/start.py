"""Pass the verbs that need ranks on to the runtime."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcbal import env
from hpcbal.errors import InputError

if TYPE_CHECKING:
    from hpcbal.runtime.handoff.launch_dir import RunRequest


def start(args: argparse.Namespace, **how: Any) -> int:
    """Run, or start the ranks that run.

    Args:
        args: parsed arguments of `run` or `profile`.
        how: see `RunRequest`.

    Returns:
        The exit code.

    Raises:
        HpcbalError: for errors that the user can fix.
    """
    request = request_of(args, **how)
    from hpcbal.config import add_import_roots
    from hpcbal.runtime import launch

    add_import_roots(args.config)
    return launch.run(request, args.argv)


def request_of(args: argparse.Namespace, **how: Any) -> RunRequest:
    """Return the request of a start; arguments and errors as for `start`."""
    output = args.output or env.read("HPCBAL_OUTPUT")
    level = args.log_level or _log_level()
    from hpcbal.runtime.handoff.launch_dir import RunRequest

    return RunRequest(
        config_path=args.config,
        overrides=tuple(args.overrides),
        output=Path(output) if output is not None else None,
        log_level=level,
        **how,
    )


def _log_level() -> str:
    given = env.read("HPCBAL_LOG_LEVEL")
    if given is None:
        return "INFO"
    if given.upper() not in env.LOG_LEVELS:
        raise InputError(f"HPCBAL_LOG_LEVEL: got {given!r}, allowed: {', '.join(env.LOG_LEVELS)}")
    return given.upper()
