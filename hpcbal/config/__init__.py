"""YAML configuration: strict, with errors that name file, line and key."""

from hpcbal.config.imports import add_import_roots, load_object
from hpcbal.config.load import AnyConfig, load_config, load_ensemble, load_of_kind, resolved_yaml
from hpcbal.config.schema.dnn import DnnConfig
from hpcbal.config.schema.ensemble import DataplaneConfig, EnsembleConfig
from hpcbal.config.schema.jobs import JobsConfig, SharedJobConfig
from hpcbal.config.schema.paramserver import ParamServerConfig, PsJobConfig
from hpcbal.config.schema.run import RunConfig

__all__ = [
    "AnyConfig",
    "DataplaneConfig",
    "DnnConfig",
    "EnsembleConfig",
    "JobsConfig",
    "ParamServerConfig",
    "PsJobConfig",
    "RunConfig",
    "SharedJobConfig",
    "add_import_roots",
    "load_config",
    "load_ensemble",
    "load_object",
    "load_of_kind",
    "resolved_yaml",
]
