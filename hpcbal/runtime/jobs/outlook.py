"""The throughput that a job's profile lets expect, at its start."""

from __future__ import annotations

import logging

from hpcbal.config import ParamServerConfig
from hpcbal.errors import HpcbalError
from hpcbal.forecast.prediction import Prediction, predict
from hpcbal.paramserver.machine.job import JobMachine
from hpcbal.planning.throughput import forecast_job

log = logging.getLogger(__name__)


def forecast_of(config: ParamServerConfig, machine: JobMachine) -> Prediction | None:
    """The forecast of the machine's roles; None without a profile, or if some executor is both.

    A file that is no trace is logged, and does not affect the run.
    """
    roles = [machine.role_of(executor) for executor in machine.spec.executors]
    if "both" in roles:
        return None
    workers = [i for i, role in enumerate(roles) if role == "worker"]
    servers = [i for i, role in enumerate(roles) if role == "server"]
    try:
        job = forecast_job(config, workers, servers)
    except HpcbalError as error:
        log.warning("the throughput cannot be forecast: %s", error)
        return None
    return None if job is None else predict(job)
