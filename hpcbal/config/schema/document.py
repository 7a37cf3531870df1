"""What files may hold beyond the config classes of their kinds, and the JSON schemas of whole files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

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
from hpcbal.config.schema.ensemble import EnsembleConfig
from hpcbal.config.schema.jobs import ARRIVES_ALLOWED, TIME_ALLOWED, JobsConfig
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
from hpcbal.config.schema.paramserver import BlocksConfig, ObjectiveConfig, ParamServerConfig, PsStopConfig
from hpcbal.config.schema.prune import SearchConfig
from hpcbal.config.schema.run import Seconds
from hpcbal.config.schema.section import COUNT_ALLOWED, Section, key

DEFAULT_KEYS = (
    "optimizer",
    "batch_size",
    "stop",
    "balance",
    "seed",
    "loss",
    "metrics",
    "label_smoothing",
    "class_weights",
    "callbacks",
    "init",
    "freeze",
)


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


JOB_DEFAULT_KEYS = (
    "arrives_s",
    "seed",
    "seconds_per_sample",
    "mini_batch",
    "stop",
    "objective",
    "blocks",
)


class JobDefaults(Section):
    """Defaults for keys that a job omits, where many share machines."""

    arrives_s: Seconds = key(0.0, "Default arrival.", ARRIVES_ALLOWED, ge=0.0)
    seed: int | None = key(None, "Default seed of a job.", SEED_ALLOWED, ge=0, lt=2**32)
    seconds_per_sample: Seconds | None = key(None, "Default time of a sample.", TIME_ALLOWED, gt=0.0)
    mini_batch: int = key(None, "Default samples of a step.", COUNT_ALLOWED, ge=1)
    stop: PsStopConfig = key(None, "Default stop rule.", "keys of stop")
    objective: ObjectiveConfig = key(None, "Default times of the objective.", "keys of objective")
    blocks: BlocksConfig = key(None, "Default sizes of blocks.", "keys of blocks")


_DIALECT = {"$schema": "https://json-schema.org/draft/2020-12/schema"}


def json_schema(kind: str = "ensemble") -> dict[str, Any]:
    """JSON schema of a configuration file of one kind, for editors.

    Keys of a DNN, or of one of many jobs, are not required there, because `defaults` and sweeps may provide
    them; `hpcbal validate` checks that none is missing in the end.
    """
    if kind == "paramserver":
        schema = ParamServerConfig.model_json_schema(by_alias=True)
        schema["required"].append("kind")
        return {**_DIALECT, **schema, "title": "hpcbal configuration of a parameter-server job"}
    if kind == "jobs":
        schema = JobsConfig.model_json_schema(by_alias=True)
        _add_sweeps(schema, "jobs", "job", "SharedJobConfig", JOB_DEFAULT_KEYS)
        schema["required"] = ["kind"]
        return {**_DIALECT, **schema, "title": "hpcbal configuration of many parameter-server jobs"}
    schema = EnsembleConfig.model_json_schema(by_alias=True)
    for name in ("LossConfig", "OptimizerConfig", "ScheduleOfRateConfig", "StopConfig"):
        schema["$defs"][name].pop("required", None)
    _add_sweeps(schema, "dnns", "DNN", "DnnConfig", DEFAULT_KEYS)
    schema["required"] = []
    return {**_DIALECT, **schema, "title": "hpcbal configuration"}


def _add_sweeps(schema: dict[str, Any], key: str, one: str, item: str, default_keys: Sequence[str]) -> None:
    """Add `defaults` and `sweeps` to the schema of a file that lists items.

    Args:
        schema: is changed.
        key: key of the list.
        one: what users call an item.
        item: name of the definition of an item; its keys become optional, but for the name.
        default_keys: keys that `defaults` may have.
    """
    definitions = schema["$defs"]
    optional = {k: v for k, v in definitions[item].items() if k != "required"}
    definitions[item] = {**optional, "required": ["name"]}
    axes = {"type": "object", "additionalProperties": {"type": "array", "minItems": 1}}
    search = SearchConfig.model_json_schema(by_alias=True)
    definitions |= search.pop("$defs")
    definitions["SearchConfig"] = search
    definitions["SweepConfig"] = {
        **optional,
        "title": "SweepConfig",
        "description": f"A {one} whose keys named in grid (every combination), zip (side by side) or "
        "search (drawn at random) vary.",
        "properties": {
            **optional["properties"],
            "name": {"type": "string", "description": "Template such as resnet-{depth}-w{width}."},
            "grid": {**axes, "description": "Every combination of these values."},
            "zip": {**axes, "description": "These values side by side; lists of equal length."},
            "search": {"$ref": "#/$defs/SearchConfig"},
        },
        "required": ["name"],
    }
    properties = schema["properties"]
    properties["defaults"] = {
        "type": "object",
        "description": f"Defaults for keys that a {one} omits.",
        "additionalProperties": False,
        "properties": {name: optional["properties"][name] for name in default_keys},
    }
    properties["sweeps"] = {
        "type": "array",
        "description": f"Families of {one}s that differ in some keys.",
        "items": {"$ref": "#/$defs/SweepConfig"},
    }
    schema["anyOf"] = [{"required": [key]}, {"required": ["sweeps"]}]
