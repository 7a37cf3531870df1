"""YAML configuration: strict, with errors that name file, line and key."""

from hpcbal.config.dnn_schema import DnnConfig, OptimizerConfig, StopConfig
from hpcbal.config.document import json_schema
from hpcbal.config.imports import add_import_roots, load_object
from hpcbal.config.load import load_config, resolved_yaml
from hpcbal.config.operations import OPERATIONS, OperationConfig
from hpcbal.config.schema import (
    BackendConfig,
    CheckpointConfig,
    DataConfig,
    DataplaneConfig,
    OutputConfig,
    ProfilingConfig,
    RunConfig,
    ScheduleConfig,
    SlotsConfig,
)

__all__ = [
    "OPERATIONS",
    "BackendConfig",
    "CheckpointConfig",
    "DataConfig",
    "DataplaneConfig",
    "DnnConfig",
    "OperationConfig",
    "OptimizerConfig",
    "OutputConfig",
    "ProfilingConfig",
    "RunConfig",
    "ScheduleConfig",
    "SlotsConfig",
    "StopConfig",
    "add_import_roots",
    "json_schema",
    "load_config",
    "load_object",
    "resolved_yaml",
]
