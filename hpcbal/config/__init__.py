"""YAML configuration: strict, with errors that name file, line and key."""

from hpcbal.config.imports import add_import_roots, load_object
from hpcbal.config.load import AnyConfig, load_config, load_ensemble, load_of_kind, resolved_yaml
from hpcbal.config.schema.dnn import DnnConfig, StopConfig
from hpcbal.config.schema.ensemble import (
    BackendConfig,
    DataConfig,
    DataplaneConfig,
    EnsembleConfig,
    ProfilingConfig,
    ScheduleConfig,
)
from hpcbal.config.schema.jobs import (
    FixedGroupConfig,
    JobsConfig,
    JobsMachineConfig,
    JobsScheduleConfig,
    SharedJobConfig,
)
from hpcbal.config.schema.operations import OPERATIONS, OperationConfig
from hpcbal.config.schema.optimizer import OptimizerConfig
from hpcbal.config.schema.paramserver import ParamServerConfig, PsJobConfig
from hpcbal.config.schema.run import CheckpointConfig, OutputConfig, RunConfig, SlotsConfig

__all__ = [
    "OPERATIONS",
    "AnyConfig",
    "BackendConfig",
    "CheckpointConfig",
    "DataConfig",
    "DataplaneConfig",
    "DnnConfig",
    "EnsembleConfig",
    "FixedGroupConfig",
    "JobsConfig",
    "JobsMachineConfig",
    "JobsScheduleConfig",
    "OperationConfig",
    "OptimizerConfig",
    "OutputConfig",
    "ParamServerConfig",
    "ProfilingConfig",
    "PsJobConfig",
    "RunConfig",
    "ScheduleConfig",
    "SharedJobConfig",
    "SlotsConfig",
    "StopConfig",
    "add_import_roots",
    "load_config",
    "load_ensemble",
    "load_object",
    "load_of_kind",
    "resolved_yaml",
]
