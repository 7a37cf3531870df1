"""Messages between workers and the scheduler about the network of a group of machines."""

from __future__ import annotations

from dataclasses import dataclass

from hpcbal.comm.channel import Message
from hpcbal.paramserver.master.messages import Evaluate, Initialise, MayStart

WITH_TICKET = (Initialise, MayStart, Evaluate)
"""Messages that let subtasks begin: a machine gives the job a ticket when one comes; see `subtasks`."""


@dataclass(frozen=True, slots=True)
class AskForNetwork(Message):
    """Worker -> scheduler: the pull or the push of its turn is next.

    Attributes:
        step: of the turn.
    """

    step: int


@dataclass(frozen=True, slots=True)
class UseNetwork(Message):
    """Scheduler -> all workers of a job that asked: begin."""


@dataclass(frozen=True, slots=True)
class NetworkUsed(Message):
    """Worker -> scheduler: the pull is answered, or the push is applied."""
