"""Many parameter-server jobs on the same machines in virtual time, subtask by subtask."""

from hpcbal.simulator.sharing.job import NAIVE, SharingDelays, SimulatedJob, SimulatedMachine, Turns
from hpcbal.simulator.sharing.record import FinishedGroup, JobTimes, SharingRun
from hpcbal.simulator.sharing.run import simulate_sharing

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
