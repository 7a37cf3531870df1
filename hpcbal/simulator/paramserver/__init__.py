"""Jobs on parameter servers in virtual time: the machines of a real job, driven frame by frame."""

from hpcbal.simulator.paramserver.job import Delays, Points, ServingJob, ServingMachine
from hpcbal.simulator.paramserver.master import ChangeTime, EpochTime, ServingRun, TurnTime
from hpcbal.simulator.paramserver.run import simulate_job, simulate_roles

__all__ = [
    "ChangeTime",
    "Delays",
    "EpochTime",
    "Points",
    "ServingJob",
    "ServingMachine",
    "ServingRun",
    "TurnTime",
    "simulate_job",
    "simulate_roles",
]
