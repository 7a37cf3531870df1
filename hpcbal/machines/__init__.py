"""The parts of every pure state machine: a bounded log of events, and an error that quotes it."""

from hpcbal.machines.event_log import EventLog, MachineError

__all__ = ["EventLog", "MachineError"]
