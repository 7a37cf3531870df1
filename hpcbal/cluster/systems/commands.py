"""Run the commands of a scheduler, with an error that a user can use."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

from hpcbal.cluster.systems.job import Command, Done
from hpcbal.errors import ClusterError

TIMEOUT_S = 120.0
"""A scheduler under load takes tens of seconds to answer."""

_OF_THIS_JOB = ("HPCBAL_CHAIN", "HPCBAL_END_FILE", "HPCBAL_END_TIME", "HPCBAL_TASK", "SLURM_RESTART_COUNT")
_OF_ARRAYS = "SLURM_ARRAY_"
"""Variables of a job: one that is submitted from inside it inherits them, and would take them for its own."""


def run_command(command: Command, timeout_s: float = TIMEOUT_S, *, in_english: bool = True) -> Done:
    """Run a command of a scheduler.

    Args:
        command: the command.
        timeout_s: seconds that its answer may take, > 0.
        in_english: whether it gets LC_ALL=C. What submits a job does not: the job inherits the variables,
            without those of the job in which this process may run.

    Raises:
        ClusterError: if it is not here, or does not answer.
    """
    name = command.words[0]
    inherited = {**os.environ, "LC_ALL": "C"} if in_english else _without_job(os.environ)
    try:
        done = subprocess.run(
            command.words,
            input=command.stdin or "",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env={**inherited, **command.environ},
            check=False,
        )
    except FileNotFoundError:
        raise ClusterError(
            f"{name}: no such command on PATH; run hpcbal where jobs are submitted, or load the module of "
            "the batch system"
        ) from None
    except OSError as error:
        raise ClusterError(f"{name}: cannot be started: {error.strerror or error}") from error
    except subprocess.TimeoutExpired:
        raise ClusterError(
            f"{name}: no answer within {timeout_s:.0f} s; the scheduler is busy or down, try again later"
        ) from None
    return Done(done.returncode, done.stdout, done.stderr)


def _without_job(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environ.items()
        if name not in _OF_THIS_JOB and not name.startswith(_OF_ARRAYS)
    }


def try_command(command: Command) -> Done:
    """Run a command that may not be here; one that cannot be started has the code 127."""
    try:
        return run_command(command)
    except ClusterError as error:
        return Done(127, "", str(error))


def answer_of(command: Command) -> Done:
    """Run a command that must succeed, such as one that submits a job.

    Raises:
        ClusterError: if it is not here, does not answer, or ends with another code than 0.
    """
    done = run_command(command, in_english=False)
    if done.code:
        said = f": {done.said}" if done.said else ""
        raise ClusterError(f"{command.words[0]} has refused, with code {done.code}{said}")
    return done
