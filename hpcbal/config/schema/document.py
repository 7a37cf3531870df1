"""The defaults that files may hold for what they list."""

from __future__ import annotations

from typing import Annotated

from pydantic import Strict

from hpcbal.config.schema.dnn import (
    BALANCE_ALLOWED,
    CALLBACKS_ALLOWED,
    INIT_ALLOWED,
    PATTERNS_ALLOWED,
    SEED_ALLOWED,
    BalanceName,
    Callback,
    Init,
    LayerPatterns,
    StopConfig,
)
from hpcbal.config.schema.jobs import ARRIVES_ALLOWED, TIME_ALLOWED
from hpcbal.config.schema.objective import (
    LOSS_ALLOWED,
    METRICS_ALLOWED,
    SMOOTHING_ALLOWED,
    WEIGHTS_ALLOWED,
    ClassWeighting,
    Loss,
    Metrics,
)
from hpcbal.config.schema.optimizer import OptimizerConfig
from hpcbal.config.schema.paramserver import BlocksConfig, ObjectiveConfig, PsStopConfig
from hpcbal.config.schema.run import Seconds
from hpcbal.config.schema.section import COUNT_ALLOWED, Section, key


class Defaults(Section):
    """Defaults for keys that a DNN omits."""

    optimizer: OptimizerConfig = key(None, "Default optimizer.", "keys of an optimizer")
    batch_size: int = key(None, "Default batch size.", "a whole number, 1 or more", ge=1)
    stop: StopConfig = key(None, "Default stop rule.", "keys of a stop rule")
    balance: BalanceName | None = key(None, "Default way to split steps.", BALANCE_ALLOWED)
    seed: int | None = key(None, "Default seed of a DNN.", SEED_ALLOWED, ge=0, lt=2**32)
    loss: Loss | None = key(None, "Default loss.", LOSS_ALLOWED)
    metrics: Annotated[Metrics, Strict(False)] | None = key(None, "Default metrics.", METRICS_ALLOWED)
    label_smoothing: float = key(0.0, "Default label smoothing.", SMOOTHING_ALLOWED, ge=0.0, lt=1.0)
    class_weights: ClassWeighting | None = key(None, "Default weights of classes.", WEIGHTS_ALLOWED)
    callbacks: Annotated[tuple[Callback, ...], Strict(False)] = key(
        (), "Default callbacks.", CALLBACKS_ALLOWED
    )
    init: Init | None = key(None, "Default weights to start from.", INIT_ALLOWED)
    freeze: LayerPatterns = key((), "Default layers that are not trained.", PATTERNS_ALLOWED)


class JobDefaults(Section):
    """Defaults for keys that a job omits, where many share machines."""

    arrives_s: Seconds = key(0.0, "Default arrival.", ARRIVES_ALLOWED, ge=0.0)
    seed: int | None = key(None, "Default seed of a job.", SEED_ALLOWED, ge=0, lt=2**32)
    seconds_per_sample: Seconds | None = key(None, "Default time of a sample.", TIME_ALLOWED, gt=0.0)
    mini_batch: int = key(None, "Default samples of a step.", COUNT_ALLOWED, ge=1)
    stop: PsStopConfig = key(None, "Default stop rule.", "keys of stop")
    objective: ObjectiveConfig = key(None, "Default times of the objective.", "keys of objective")
    blocks: BlocksConfig = key(None, "Default sizes of blocks.", "keys of blocks")


DEFAULT_KEYS = tuple(Defaults.model_fields)
JOB_DEFAULT_KEYS = tuple(JobDefaults.model_fields)
