"""Simulate a job on parameter servers: the machine of a real job, driven in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from hpcbal.errors import HpcbalError, InputError
from hpcbal.garbage import without_garbage_collection
from hpcbal.paramserver.master.bounded_staleness import BoundedStaleness
from hpcbal.paramserver.master.events import Reconfigure
from hpcbal.paramserver.master.job import JobMachine, JobSpec
from hpcbal.paramserver.master.stopping import JobStop
from hpcbal.paramserver.store.ownership import dealt_out, dealt_out_by_table
from hpcbal.simulator.paramserver.client import VirtualClient
from hpcbal.simulator.paramserver.clock import Clock, Delay
from hpcbal.simulator.paramserver.executor import VirtualExecutor
from hpcbal.simulator.paramserver.job import Delays, ServingJob, ServingMachine
from hpcbal.simulator.paramserver.master import VirtualMaster, Watcher
from hpcbal.simulator.paramserver.network import Network
from hpcbal.simulator.paramserver.record import ServingRun
from hpcbal.simulator.paramserver.server import VirtualServer
from hpcbal.simulator.paramserver.units import Units

WatcherOf = Callable[[JobMachine], Watcher]
"""Makes a watcher of a job's machine."""


def simulate_job(
    job: ServingJob,
    machines: Sequence[ServingMachine],
    data_owner: Sequence[int],
    parameter_owner: Sequence[int],
    *,
    delays: Delays | None = None,
    changes: Mapping[int, Reconfigure] | None = None,
    watcher: WatcherOf | None = None,
    most_epochs: int | None = None,
    are_shared: bool = False,
) -> ServingRun:
    """Run a job to its end in virtual time, frame by frame.

    `JobMachine`, `Host`, `Client`, `Link` and `WorkerSamples` decide and count as in a real run; only time is
    simulated. The same arguments give the same result. Left out: rows that `sync` keeps as they were before a
    step when their block moves, and limits of memory.

    Args:
        job: what is simulated.
        machines: of executors 1, 2, ...; rank 0 is the master.
        data_owner, parameter_owner: rank of each block at the start.
        delays: None: none.
        changes: reconfigurations, by the number of epochs after which they begin.
        watcher: proposes others.
        most_epochs: leave the job after so many epochs, although it would go on; None: at its end.
        are_shared: whether messages share links; otherwise a link carries one after the other.

    Raises:
        InputError: a block has no owner, or one that does not exist.
        JobError: a reconfiguration moves blocks from a rank that does not own them.
    """
    ranks = range(1, len(machines) + 1)
    _check_owners("data", data_owner, job.num_data_blocks, ranks)
    _check_owners("parameter", parameter_owner, job.layout.num_blocks, ranks)
    delays = delays or Delays()
    clock = Clock()
    bandwidths = {rank: machines[rank - 1].bandwidth for rank in ranks}
    network = Network(
        clock,
        bandwidths,
        Delay(delays.send_s, f"{job.seed} send"),
        Delay(delays.notice_s, f"{job.seed} notice"),
        are_shared=are_shared,
    )
    units = Units(job, parameter_owner, may_move=bool(changes) or watcher is not None)
    pace = BoundedStaleness(job.steps, job.staleness, job.max_epochs, job.objective_every)
    machine = JobMachine(JobSpec(tuple(ranks), pace, JobStop(job.max_epochs)), data_owner, parameter_owner)
    watching = None if watcher is None else watcher(machine)
    master = VirtualMaster(
        clock, machine, Delay(delays.control_s, f"{job.seed} control"), changes or {}, watching
    )
    executors: dict[int, VirtualExecutor] = {}
    clients: dict[int, VirtualClient] = {}
    servers: dict[int, VirtualServer] = {}
    for rank in ranks:
        report = partial(master.report, rank)
        master.executors[rank] = VirtualExecutor(
            rank, job, machines[rank - 1], delays, clock, network, units, clients, servers, executors, report
        )
    with without_garbage_collection():
        master.start()
        clock.run(lambda: master.end is not None or len(master.epochs) == most_epochs)
    if master.end is None and len(master.epochs) != most_epochs:
        raise HpcbalError(f"the simulated job stands still at {clock.now_s:.6g} s, {machine.phase}")
    return ServingRun(
        tuple(master.epochs),
        tuple(master.turns),
        tuple(master.changed),
        network.bytes_in,
        network.bytes_out,
        machine.owners("data"),
        machine.owners("parameters"),
    )


def _check_owners(what: str, owners: Sequence[int], num_blocks: int, ranks: range) -> None:
    if len(owners) != num_blocks or not set(owners) <= set(ranks):
        raise InputError(
            f"{what} blocks: got owners {sorted(set(owners))} of {len(owners)} blocks, "
            f"allowed: ranks 1..{len(ranks)} for each of {num_blocks} blocks"
        )


def simulate_roles(
    job: ServingJob,
    machines: Sequence[ServingMachine],
    num_workers: int,
    num_servers: int,
    delays: Delays | None = None,
    *,
    are_shared: bool = False,
) -> ServingRun:
    """Run a job whose first executors work and whose next ones serve; see `simulate_job`. Shares are even."""
    workers = range(1, num_workers + 1)
    servers = range(num_workers + 1, num_workers + num_servers + 1)
    data, parameters = (
        dealt_out(job.num_data_blocks, workers),
        dealt_out_by_table(job.parameter_blocks, servers),
    )
    return simulate_job(job, machines, data, parameters, delays=delays, are_shared=are_shared)
