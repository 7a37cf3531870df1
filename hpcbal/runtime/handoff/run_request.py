"""The request of a start: what the command line asked for."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from hpcbal import env
from hpcbal.config import AnyConfig, JobsConfig, RunConfig, load_config, load_ensemble
from hpcbal.runtime.handoff.submissions import with_submitted
from hpcbal.stderr import say
from hpcbal.telemetry import RunDirectory


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One start of `hpcbal run` or `hpcbal profile`.

    Attributes:
        config_path: the YAML file.
        overrides: `--set` arguments, `a.b=c`.
        output: directory of the run; None means `output.dir` of the config.
        resume: whether to refuse to start a new run.
        retry_failed: whether DNNs that failed in an earlier start get another try.
        profile_only: whether to measure the rates and stop.
        started_s: when this start began, in seconds since the Unix epoch.
        log_level: level of the rank logs, the name of a level of `logging`, such as DEBUG.
    """

    config_path: Path
    overrides: tuple[str, ...] = ()
    output: Path | None = None
    resume: bool = False
    retry_failed: bool = False
    profile_only: bool = False
    log_level: str = "INFO"
    started_s: float = field(default_factory=time.time)


def load_requested(request: RunRequest, *, is_rank: bool) -> AnyConfig:
    """Load the configuration of a start; warn once, on stderr, about keys that have no effect.

    Args:
        is_rank: whether this is rank 0; it does not warn if `hpcbal run` has started it and warned already.

    Raises:
        ConfigError: if the configuration is wrong, or a job that was submitted to the run.
        OutputError: if submitted jobs cannot be read.
    """

    def warn(text: str) -> None:
        say(f"warning: {text}")

    has_warned = is_rank and env.read("HPCBAL_LAUNCHED") is not None
    load = load_ensemble if request.profile_only else load_config
    config = load(
        request.config_path, request.overrides, check_imports=True, warn=None if has_warned else warn
    )
    return with_submitted(config, output_of(request, config)) if isinstance(config, JobsConfig) else config


def output_of(request: RunRequest, config: RunConfig) -> RunDirectory:
    """The run's directory: `--output` takes precedence over `output.dir`."""
    return RunDirectory(Path(request.output if request.output is not None else config.output.dir))
