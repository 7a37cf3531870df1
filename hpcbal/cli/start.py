"""Pass the verbs that need ranks on to the runtime."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpcbal import env
from hpcbal.errors import InputError


def start(
    args: argparse.Namespace,
    *,
    resume: bool,
    retry_failed: bool,
    profile_only: bool,
    smoke: bool = False,
    num_operation_steps: int | None = None,
) -> int:
    """Run, or start the ranks that run.

    Args:
        args: parsed arguments of `run` or `profile`.
        resume, retry_failed, profile_only, smoke, num_operation_steps: see `RunRequest`.

    Returns:
        The exit code.

    Raises:
        HpcbalError: for errors that the user can fix.
    """
    output = args.output or env.read("HPCBAL_OUTPUT")
    level = args.log_level or _log_level()
    from hpcbal.config import add_import_roots
    from hpcbal.runtime import launch
    from hpcbal.runtime.handoff.launch_dir import RunRequest

    add_import_roots(args.config)
    request = RunRequest(
        config_path=args.config,
        overrides=tuple(args.overrides),
        output=Path(output) if output is not None else None,
        resume=resume,
        retry_failed=retry_failed,
        profile_only=profile_only,
        smoke=smoke,
        num_operation_steps=num_operation_steps,
        log_level=level,
    )
    return launch.run(request, args.argv)


def _log_level() -> str:
    given = env.read("HPCBAL_LOG_LEVEL")
    if given is None:
        return "INFO"
    if given.upper() not in env.LOG_LEVELS:
        raise InputError(f"HPCBAL_LOG_LEVEL: got {given!r}, allowed: {', '.join(env.LOG_LEVELS)}")
    return given.upper()
