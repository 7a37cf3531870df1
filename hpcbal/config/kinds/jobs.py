"""How a file of many parameter-server jobs becomes a `JobsConfig`: checks and warnings."""

from __future__ import annotations

from collections.abc import Sequence

from hpcbal.config.checks.import_check import jobs_import_problems
from hpcbal.config.checks.shared_jobs import job_problems, job_warnings
from hpcbal.config.checks.walltime import walltime_warnings
from hpcbal.config.kinds.kind import Draft, Kind, apply_all
from hpcbal.config.schema.jobs import JobsConfig
from hpcbal.config.source.nodes import YamlNode
from hpcbal.config.source.overrides import Override


def _draft(root: YamlNode, overrides: Sequence[Override]) -> Draft:
    return Draft(root, tuple(apply_all(overrides, root)))


def _warnings(config: JobsConfig, full: YamlNode, beforehand: bool) -> list[str]:
    return [*walltime_warnings(config, full), *job_warnings(config, full)]


JOBS = Kind(JobsConfig, _draft, job_problems, jobs_import_problems, _warnings)
