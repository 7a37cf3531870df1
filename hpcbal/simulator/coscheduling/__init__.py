"""Many parameter-server jobs on the same machines in virtual time, subtask by subtask."""

from hpcbal.simulator.coscheduling.job import NAIVE, SharingDelays, SimulatedJob, SimulatedMachine, Turns
from hpcbal.simulator.coscheduling.record import FinishedGroup, JobTimes, SharingRun
from hpcbal.simulator.coscheduling.run import simulate_sharing

__all__ = [
    "NAIVE",
    "FinishedGroup",
    "JobTimes",
    "SharingDelays",
    "SharingRun",
    "SimulatedJob",
    "SimulatedMachine",
    "Turns",
    "simulate_sharing",
]
