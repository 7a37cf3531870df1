"""Runs in virtual time: the state machine and the policies of a real run, with a simulated clock."""

from hpcbal.simulator.balancing import Balancing, GroupRates, varied_rates
from hpcbal.simulator.choosing import ASSUMED_COSTS, Outset, choose_schedule, predict_schedules
from hpcbal.simulator.comparison import FlotillaRow, Row, compare
from hpcbal.simulator.costs import Costs
from hpcbal.simulator.pass_model import PassModel, ReadingGroup
from hpcbal.simulator.preset import EnsembleLaw, load_preset, preset_names
from hpcbal.simulator.record import DnnRecord, RoundRecord, SimulatedRun, Span, TimedEvent
from hpcbal.simulator.run import RemainingRun, lower_bound, predict, simulate, too_long
from hpcbal.simulator.scenario import Published, Scenario, Workload, cluster_of

__all__ = [
    "ASSUMED_COSTS",
    "Balancing",
    "Costs",
    "DnnRecord",
    "EnsembleLaw",
    "FlotillaRow",
    "GroupRates",
    "Outset",
    "PassModel",
    "Published",
    "ReadingGroup",
    "RemainingRun",
    "RoundRecord",
    "Row",
    "Scenario",
    "SimulatedRun",
    "Span",
    "TimedEvent",
    "Workload",
    "choose_schedule",
    "cluster_of",
    "compare",
    "load_preset",
    "lower_bound",
    "predict",
    "predict_schedules",
    "preset_names",
    "simulate",
    "too_long",
    "varied_rates",
]
