"""The request of a start: what the command line asked for."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from hpcbal import env
from hpcbal.config import (
    AnyConfig,
    EnsembleConfig,
    JobsConfig,
    ParamServerConfig,
    RunConfig,
    load_config,
    load_ensemble,
)
from hpcbal.errors import InputError
from hpcbal.runtime.handoff.submissions import with_submitted
from hpcbal.stderr import say
from hpcbal.telemetry import RunDirectory

SMOKE_STEPS = 20
"""Steps of the largest batch size in a trial, training and validation together."""
SMOKE_PROFILING = {"max_batches": 4, "timed_batches": 2}


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
        smoke: whether to train each DNN for one small epoch, in a new directory below the run's.
        num_operation_steps: steps of one worker of a parameter-server job to record, and stop; None: train.
        started_s: when this start began, in seconds since the Unix epoch.
        log_level: level of the rank logs, the name of a level of `logging`, such as DEBUG.
    """

    config_path: Path
    overrides: tuple[str, ...] = ()
    output: Path | None = None
    resume: bool = False
    retry_failed: bool = False
    profile_only: bool = False
    smoke: bool = False
    num_operation_steps: int | None = None
    log_level: str = "INFO"
    started_s: float = field(default_factory=time.time)


def load_requested(request: RunRequest, *, is_rank: bool) -> AnyConfig:
    """Load the configuration of a start; warn once, on stderr, about keys that have no effect.

    Args:
        is_rank: whether this is rank 0; it does not warn if `hpcbal run` has started it and warned already.

    Raises:
        ConfigError: if the configuration is wrong, or a job that was submitted to the run.
        InputError: if operations are to be recorded of something else than an `async` job.
        OutputError: if submitted jobs cannot be read.
    """

    def warn(text: str) -> None:
        say(f"warning: {text}")

    has_warned = is_rank and env.read("HPCBAL_LAUNCHED") is not None
    load = load_ensemble if request.profile_only or request.smoke else load_config
    config = load(
        request.config_path, request.overrides, check_imports=True, warn=None if has_warned else warn
    )
    if request.num_operation_steps is not None:
        check_has_operations(config, request.config_path)
    if request.smoke and isinstance(config, EnsembleConfig):
        return small(config)
    return with_submitted(config, output_of(request, config)) if isinstance(config, JobsConfig) else config


def small(config: EnsembleConfig) -> EnsembleConfig:
    """Return the configuration of a trial: one epoch of each DNN on few samples."""
    most = SMOKE_STEPS * max(dnn.batch_size for dnn in config.dnns)
    data = config.data.model_copy(update={"max_samples": min(most, config.data.max_samples or most)})
    once = {"max_epochs": 1, "patience": None, "target": None}
    profiling = config.schedule.profiling.model_copy(update=SMOKE_PROFILING)
    return config.model_copy(
        update={
            "data": data,
            "dnns": tuple(
                dnn.model_copy(update={"stop": dnn.stop.model_copy(update=once)}) for dnn in config.dnns
            ),
            "schedule": config.schedule.model_copy(update={"profiling": profiling}),
            "prune": config.prune.model_copy(update={"rule": "none"}),
        }
    )


def check_has_operations(config: AnyConfig, path: Path) -> None:
    """Refuse to record operations of what a forecast is not made for.

    Raises:
        InputError: it is no parameter-server job, or not `async`.
    """
    if not isinstance(config, ParamServerConfig):
        what = "one parameter-server job" if isinstance(config, JobsConfig) else "parameter-server jobs"
        raise InputError(
            f"{path}: kind: got {config.kind}, allowed with --operations: paramserver; it records the "
            f"operations of {what}"
            + ("" if isinstance(config, JobsConfig) else "; leave it out to measure an ensemble's rates")
        )
    if config.staleness is not None:
        given = config.consistency if isinstance(config.consistency, str) else "stale"
        raise InputError(
            f"{path}: consistency: got {given}, allowed with --operations: async; forecasts are of workers "
            "that do not wait for each other (--set consistency=async)"
        )


def output_of(request: RunRequest, config: RunConfig) -> RunDirectory:
    """The run's directory: `--output` takes precedence over `output.dir`; a trial gets a new one below."""
    root = Path(request.output if request.output is not None else config.output.dir)
    if request.smoke:
        root = root / "smoke" / time.strftime("%Y%m%d-%H%M%S", time.localtime(request.started_s))
    return RunDirectory(root)
