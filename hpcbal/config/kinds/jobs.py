"""How a file of many jobs becomes a `JobsConfig`: sweeps, defaults, checks and warnings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcbal.config.checks.import_check import jobs_import_problems
from hpcbal.config.checks.sections import job_problems, job_warnings
from hpcbal.config.checks.warnings import data_warnings, walltime_warnings
from hpcbal.config.kinds.kind import Draft, KindFile
from hpcbal.config.kinds.listing import draft_of_list, schema_of_list
from hpcbal.config.listed import JOBS
from hpcbal.config.schema.document import JobDefaults
from hpcbal.config.schema.jobs import JobsConfig
from hpcbal.config.source.nodes import YamlNode
from hpcbal.config.source.overrides import Override


def _draft(root: YamlNode, overrides: Sequence[Override]) -> Draft:
    return draft_of_list(root, overrides, JOBS, JobsConfig, JobDefaults)


def _warnings(config: JobsConfig, full: YamlNode, beforehand: bool) -> list[str]:
    lines = [*walltime_warnings(config, full), *job_warnings(config, full)]
    return lines + (data_warnings(full) if beforehand else [])


def _schema() -> dict[str, Any]:
    return {**schema_of_list(JobsConfig, JOBS), "required": ["kind"]}


FILE = KindFile(
    JobsConfig,
    JOBS,
    _draft,
    job_problems,
    jobs_import_problems,
    _warnings,
    _schema,
    "hpcbal configuration of many parameter-server jobs",
)
