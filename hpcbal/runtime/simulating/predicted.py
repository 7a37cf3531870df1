"""Predict the whole time of parameter-server jobs from their file, their apps and their data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcbal.config import JobsConfig, ParamServerConfig
from hpcbal.planning.allocation import PredictedRun

if TYPE_CHECKING:
    from hpcbal.planning.paramserver import MeasuredEpoch

FRAME_DELAY_S = 1e-3
"""Default of `send_s`, `notice_s` and `control_s` with `machines`: as measured of emulated executors.
Without them it is 0: what an earlier run measured of links includes such delays."""

DELAYS_S = {
    "control_s": FRAME_DELAY_S,
    "send_s": FRAME_DELAY_S,
    "notice_s": FRAME_DELAY_S,
    "payload_s": 2 * FRAME_DELAY_S,
}
"""The same for many jobs. A long payload comes when two ranks have looked again."""


def predicted_job(
    config: ParamServerConfig, num_executors: int, measured: MeasuredEpoch | None = None
) -> PredictedRun:
    """Simulate a job that has all ranks for itself; opens its data, which runs the code of the user.

    Args:
        num_executors: all ranks but the master's, >= 2.
        measured: by an earlier run; None: there is none.

    Raises:
        InputError: neither the file nor a measurement says how fast executors are, or the file does not fit
            so many.
        UserCodeError: the app or the dataset raises.
    """
    from hpcbal.planning.paramserver import machines_of
    from hpcbal.runtime.jobs.loading import load_job
    from hpcbal.runtime.simulating.forecast import forecast_job
    from hpcbal.simulator.paramserver.job import Delays

    machines_of(config, num_executors, measured)  # what is missing is told before the data is opened
    delay_s = FRAME_DELAY_S if config.machines else 0.0
    delays = Delays(send_s=delay_s, notice_s=delay_s, control_s=delay_s)
    found = forecast_job(config, load_job(config), num_executors, measured, delays)
    return PredictedRun(found.seconds, found.busy)


def predicted_jobs(config: JobsConfig, num_machines: int) -> PredictedRun:
    """Simulate jobs that share machines; opens their data, which runs the code of the user.

    Args:
        num_machines: all ranks but the scheduler's, >= 1.

    Raises:
        InputError: the file does not say how fast jobs or links are, or a job fits on no number of machines.
        UserCodeError: an app or a dataset raises.
    """
    from hpcbal.runtime.jobs.loading import load_job
    from hpcbal.runtime.simulating.shared_jobs import check_speeds, forecast_jobs
    from hpcbal.simulator.coscheduling.job import SharingDelays

    check_speeds(config)
    loaded = {job.name: load_job(job) for job in config.jobs}
    run = forecast_jobs(config, loaded, num_machines, SharingDelays(**DELAYS_S))
    return PredictedRun(run.makespan_s, run.cpu_use)
