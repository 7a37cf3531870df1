"""Jobs on parameter servers in virtual time: the machines of a real job, driven frame by frame."""

from hpcbal.simulator.serving.job import Delays, Points, ServingJob, ServingMachine
from hpcbal.simulator.serving.record import ChangeTime, EpochTime, ServingRun, TurnTime
from hpcbal.simulator.serving.run import simulate_job, simulate_roles

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
