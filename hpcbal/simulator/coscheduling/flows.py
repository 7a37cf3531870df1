"""Pulls and pushes as times of links, for runs that are too large to simulate every frame.

A worker uses its own link alone, for as long as its bytes take on the slowest link of its job: exact if the
machines of a job are alike in what else they send.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from hpcbal.paramserver.api import Table
from hpcbal.paramserver.store.layout import Ownership
from hpcbal.simulator.coscheduling.job import SimulatedJob
from hpcbal.simulator.paramserver.clock import Cores
from hpcbal.simulator.paramserver.job import ServingJob
from hpcbal.simulator.paramserver.units import TurnBytes


class FlowClient:
    """The pulls and pushes of one worker; see `serving.client.WorkerClient`.

    Args:
        job: its name.
        link: of its machine; those that use it at the same time share it evenly.
        num_bytes: of a pull, and of a push.
        seconds: that these take.
        owners: of parameter blocks.
        on_event: called after each pull or push.
    """

    num_unsent = 0

    def __init__(
        self,
        job: str,
        link: Cores,
        num_bytes: float,
        seconds: float,
        owners: Sequence[int],
        on_event: Callable[[], None],
    ) -> None:
        self._job, self._link, self._bytes, self._seconds = job, link, num_bytes, seconds
        self._on_event = on_event
        self.ownership = Ownership(owners)
        self.num_bytes = self.num_pulls = self.num_unapplied = 0

    def pull(self, num_samples: int, *, keeps_dense: bool = False) -> None:
        """See `WorkerClient`."""
        self.num_bytes += round(self._bytes)
        if self._seconds:
            self.num_pulls += 1
            self._link.start(self._job, self._seconds, self._pulled)

    def _pulled(self) -> None:
        self.num_pulls -= 1
        self._on_event()

    def push(self, sizes: TurnBytes, then: Callable[[], None]) -> None:
        """See `WorkerClient`."""
        self.num_bytes += round(self._bytes)
        if self._seconds:
            self.num_unapplied += 1
            self._link.start(self._job, self._seconds, partial(self._pushed, then))
        else:
            then()

    def _pushed(self, then: Callable[[], None]) -> None:
        self.num_unapplied -= 1
        then()
        self._on_event()


def job_of_flows(job: SimulatedJob, num_machines: int) -> ServingJob:
    """Return a job as its worker and its `JobMachine` see it: every iteration is an epoch of one step.

    Args:
        num_machines: on which it starts; each has an equal share of the samples, unless these are cut.
    """
    blocks = job.data_blocks or num_machines
    return ServingJob(
        num_samples=blocks,
        num_data_blocks=blocks,
        mini_batch=blocks,
        staleness=0,
        tables=(Table("parameters", num_machines, 1),),
        parameter_blocks=(num_machines,),
        max_epochs=job.iterations,
        objective_every=job.iterations,
    )
