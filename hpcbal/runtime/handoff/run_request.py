"""What the command line asked for."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from hpcbal import env
from hpcbal.config import EnsembleConfig, RunConfig, load_config
from hpcbal.stderr import say
from hpcbal.telemetry import RunDirectory


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One start of `hpcbal run` or `hpcbal profile`.

    Attributes:
        config_path: the YAML file.
        overrides: `--set` arguments, `a.b=c`.
        output: directory of the run; None means the config's.
        resume: refuse to start a new run.
        retry_failed: failed DNNs of an earlier start get another try.
        profile_only: measure the rates and stop.
        started_s: when this start began, seconds of the Unix epoch.
        log_level: of the rank logs, name of a level of `logging`, such as DEBUG.
    """

    config_path: Path
    overrides: tuple[str, ...] = ()
    output: Path | None = None
    resume: bool = False
    retry_failed: bool = False
    profile_only: bool = False
    log_level: str = "INFO"
    started_s: float = field(default_factory=time.time)


def load_requested(request: RunRequest, *, is_rank: bool) -> EnsembleConfig:
    """The configuration of a start; what it says in vain is told on stderr, once.

    Args:
        is_rank: whether this is rank 0, to whose words those of `hpcbal run` may have come first.

    Raises:
        ConfigError: the configuration is wrong.
    """

    def warn(text: str) -> None:
        say(f"warning: {text}")

    is_told = is_rank and env.read("HPCBAL_LAUNCHED") is not None
    return load_config(
        request.config_path, request.overrides, check_imports=True, warn=None if is_told else warn
    )


def output_of(request: RunRequest, config: RunConfig) -> RunDirectory:
    """The run's directory: `--output` wins over `output.dir`."""
    return RunDirectory(Path(request.output if request.output is not None else config.output.dir))
