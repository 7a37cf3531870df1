"""What an ensemble's file may hold beyond `EnsembleConfig`, and the JSON schemas of whole files."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Strict

from hpcbal.config.schema.callbacks import CALLBACKS_ALLOWED, Callback
from hpcbal.config.schema.dnn import (
    BALANCE_ALLOWED,
    SEED_ALLOWED,
    BalanceName,
    DnnConfig,
    StopConfig,
)
from hpcbal.config.schema.ensemble import EnsembleConfig
from hpcbal.config.schema.initial import INIT_ALLOWED, PATTERNS_ALLOWED, Init, LayerPatterns
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
from hpcbal.config.schema.paramserver import ParamServerConfig
from hpcbal.config.schema.search import SearchConfig
from hpcbal.config.schema.section import Section, key

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
SWEEP_KEYS = DnnConfig.sweep_keys
FILE_ONLY_KEYS = EnsembleConfig.file_only_keys


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


_DIALECT = {"$schema": "https://json-schema.org/draft/2020-12/schema"}


def json_schema(kind: str = "ensemble") -> dict[str, Any]:
    """JSON schema of a configuration file of one kind, for editors.

    Keys of a DNN are not required there, because `defaults` and sweeps may provide them; `hpcbal validate`
    checks that none is missing in the end.
    """
    if kind == "paramserver":
        schema = ParamServerConfig.model_json_schema(by_alias=True)
        schema["required"].append("kind")
        return {**_DIALECT, **schema, "title": "hpcbal configuration of a parameter-server job"}
    schema = EnsembleConfig.model_json_schema(by_alias=True)
    definitions = schema["$defs"]
    optional = {k: v for k, v in definitions["DnnConfig"].items() if k != "required"}
    for name in ("LossConfig", "OptimizerConfig", "ScheduleOfRateConfig", "StopConfig"):
        definitions[name].pop("required", None)
    definitions["DnnConfig"] = {**optional, "required": ["name"]}
    axes = {"type": "object", "additionalProperties": {"type": "array", "minItems": 1}}
    search = SearchConfig.model_json_schema(by_alias=True)
    definitions |= search.pop("$defs")
    definitions["SearchConfig"] = search
    definitions["SweepConfig"] = {
        **optional,
        "title": "SweepConfig",
        "description": "A DNN whose keys named in grid (every combination), zip (side by side) or "
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
        "description": "Defaults for keys that a DNN omits.",
        "additionalProperties": False,
        "properties": {name: optional["properties"][name] for name in DEFAULT_KEYS},
    }
    properties["sweeps"] = {
        "type": "array",
        "description": "Families of DNNs that differ in some keys.",
        "items": {"$ref": "#/$defs/SweepConfig"},
    }
    schema["required"] = []
    schema["anyOf"] = [{"required": ["dnns"]}, {"required": ["sweeps"]}]
    schema["title"] = "hpcbal configuration"
    return {**_DIALECT, **schema}
