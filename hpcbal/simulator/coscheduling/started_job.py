"""One start of a simulated job on shared machines: its `JobMachine`, and its executors.

A worker uses its own link alone, for as long as its bytes take on the slowest link of its job: exact if the
machines of a job are alike in what else they send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from hpcbal.comm.channel import Message
from hpcbal.events.history import EpochRecord
from hpcbal.paramserver.api.update import Table
from hpcbal.paramserver.coscheduling.profiling import IterationMeter, load_of, note_disturbance
from hpcbal.paramserver.coscheduling.subtasks import AskForNetwork, NetworkUsed, UseNetwork
from hpcbal.paramserver.coscheduling.synchroniser import KEEP_S, Grant, NetworkSynchroniser
from hpcbal.paramserver.master.bounded_staleness import BoundedStaleness
from hpcbal.paramserver.master.events import End, Event, Instruction, StopRequested, WriteManifest
from hpcbal.paramserver.master.job import JobMachine, JobSpec
from hpcbal.paramserver.master.messages import TurnDone
from hpcbal.paramserver.master.stopping import JobStop
from hpcbal.paramserver.store.layout import Ownership, dealt_out, dealt_out_by_table
from hpcbal.paramserver.worker.resources import MachineQueues, SharedResources, Waits
from hpcbal.paramserver.worker.samples import Cursor
from hpcbal.policies.grouping.groups import JobLoad
from hpcbal.simulator.coscheduling.job import SharingDelays, SimulatedJob, SimulatedMachine, Turns
from hpcbal.simulator.paramserver.client import VirtualClient
from hpcbal.simulator.paramserver.clock import Clock, Cores, Delay, sleep
from hpcbal.simulator.paramserver.executor import VirtualExecutor, VirtualResources
from hpcbal.simulator.paramserver.job import Delays, ServingJob, ServingMachine
from hpcbal.simulator.paramserver.master import VirtualMaster
from hpcbal.simulator.paramserver.network import Network
from hpcbal.simulator.paramserver.server import VirtualServer
from hpcbal.simulator.paramserver.units import TurnBytes, Units


@dataclass(frozen=True, slots=True)
class StartTimes:
    """Seconds of a start and a stop of a job on each of its machines.

    Attributes:
        make_s: of a core, to make the executor's blocks.
        read_s, save_s: of its disk.
    """

    make_s: float
    read_s: float
    save_s: float


class VirtualMachine(MachineQueues):
    """One rank with the executors of several jobs.

    Args:
        clock: of the simulation.
        turns: whether jobs take turns.
        host: cores that all machines share.

    Attributes:
        cores: its own cores.
        link: of jobs whose frames are not simulated.
    """

    def __init__(self, clock: Clock, turns: Turns, host: Cores) -> None:
        super().__init__(
            lambda: clock.now_s, uses_queues=turns.uses_queues, is_synchronised=turns.is_synchronised
        )
        self.clock, self.host = clock, host
        self.cores, self.link = Cores(clock), Cores(clock)

    def used_s(self) -> tuple[float, float]:
        """For how long cores and link have been used until now."""
        cpu, network = self.cpu_busy, self.network_busy
        return cpu.seconds + cpu.under_way_s, network.seconds + network.under_way_s


class VirtualTenant(VirtualResources):
    """The resources of one job's executor on a shared machine.

    Args:
        machine: the machine.
        rank: of the machine.
        job: its name.
        send: sends a message to the scheduler.
        times: what a start and a stop take here.
    """

    def __init__(
        self, machine: VirtualMachine, rank: int, job: str, send: Callable[[Message], None], times: StartTimes
    ) -> None:
        super().__init__(machine.clock)
        self._machine, self._job, self._times = machine, job, times
        self._name = f"{job} on {rank}"
        self.subtasks: SharedResources = SharedResources(machine, job, send)

    def hear(self, message: Message, look: Callable[[], None]) -> bool:
        """A message for the executor has come, who goes on by `look`; returns whether it is for them."""
        self._machine.wakes[self._job] = partial(self.clock.after, 0.0, look)
        return self.subtasks.hear(message)

    def leave(self) -> None:
        """The job is gone."""
        del self._machine.wakes[self._job]

    def compute(self, seconds: float, look: Callable[[], None]) -> Waits[float]:
        return self._machine.cores.work(self._job, seconds, look)

    def load(self, look: Callable[[], None]) -> Waits[None]:
        """Making blocks takes the host's cores, whatever the machine computes."""
        yield from self._machine.host.work(self._name, self._times.make_s, look)
        yield from sleep(self.clock, look, self._times.read_s)

    def save(self, look: Callable[[], None]) -> Waits[None]:
        yield from sleep(self.clock, look, self._times.save_s)


@dataclass(slots=True)
class Checkpoint:
    """The part of a job that outlives its starts.

    Attributes:
        number: of its last checkpoint; None: it has none.
        history: its objectives.
        cursors: how far each data block is.
        num_starts: how often it has been started.
    """

    number: int | None = None
    history: tuple[EpochRecord, ...] = ()
    cursors: Mapping[int, Cursor] = field(default_factory=dict)
    num_starts: int = 0


class Hears(Protocol):
    """The scheduler's side of the simulation."""

    def loaded(self, run: StartedJob) -> None:
        """A job has what it needs on its machines."""

    def iterated(self, run: StartedJob, is_measured: bool) -> None:
        """A job has ended an iteration."""

    def left(self, run: StartedJob) -> None:
        """A job has left its machines."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The parts that all jobs of a simulation have in common.

    Attributes:
        clock, network: of the simulation.
        machines, shared: by rank.
        synchroniser: says when pulls and pushes of steps may begin.
        delays: that pass beside computing and links.
        warm_up: iterations that are not measured.
        grant: lets jobs use the network.
        hears: is told what happens.
        running: jobs that are on machines, by name.
    """

    clock: Clock
    network: Network
    machines: Mapping[int, SimulatedMachine]
    shared: Mapping[int, VirtualMachine]
    synchroniser: NetworkSynchroniser
    delays: SharingDelays
    warm_up: int
    grant: Callable[[Iterable[Grant]], None]
    hears: Hears
    running: dict[str, StartedJob]


class StartedJob:
    """A job on its machines, until it is done or leaves them.

    Args:
        job: what is simulated.
        frames: the job, as far as its frames go; its numbers of samples and epochs are those of `job`. None:
            frames are not simulated, see `flows`.
        checkpoint: from which it goes on; kept up to date.
        ranks: of its machines.
        around: what it shares with other jobs.

    Attributes:
        name: of the job.
        ranks: of its machines.
        meter: measures its iterations.
        began_s: when it was placed.
    """

    def __init__(
        self,
        job: SimulatedJob,
        frames: ServingJob | None,
        checkpoint: Checkpoint,
        ranks: tuple[int, ...],
        around: Surroundings,
    ) -> None:
        self._uses_frames = frames is not None
        if frames is None:
            frames = job_of_flows(job, len(ranks))
        self._job, self._frames, self._checkpoint, self._around = job, frames, checkpoint, around
        self.name, self.ranks = job.name, ranks
        self.began_s = around.clock.now_s
        self._loading_s: float | None = None
        self._saving_s: float | None = None
        self._asked_to_save_s = 0.0
        self._end: End | None = None
        checkpoint.num_starts += 1
        pace = BoundedStaleness(frames.steps, frames.staleness, frames.max_epochs, frames.objective_every)
        self._machine = JobMachine(
            JobSpec(ranks, pace, JobStop(frames.max_epochs)),
            dealt_out(frames.num_data_blocks, ranks),
            dealt_out_by_table(frames.parameter_blocks, ranks),
            checkpoint.number,
            checkpoint.history,
        )
        workers = set(self._machine.owners("data"))
        self._num_workers = len(workers)
        self.meter = IterationMeter(workers, around.warm_up)
        around.synchroniser.add(self.name, workers, ranks)
        seed = f"{frames.seed} {self.name} {checkpoint.num_starts}" if self._uses_frames else None
        self._master = _JobMaster(self, around.clock, self._machine, Delay(around.delays.control_s, seed))
        self._executors = self._make_executors()
        self._master.executors.update({rank: self._listener(rank) for rank in ranks})

    def _make_executors(self) -> dict[int, VirtualExecutor]:
        around, frames, checkpoint = self._around, self._frames, self._checkpoint
        count, delays = len(self.ranks), around.delays
        read_bytes = self._job.input_bytes + (0.0 if checkpoint.number is None else self._job.state_bytes)
        times = StartTimes(
            delays.start_s,
            read_bytes / count / delays.disk_bytes_per_s,
            delays.stop_s + self._job.state_bytes / count / delays.disk_bytes_per_s,
        )
        units = Units(frames, self._machine.owners("parameters"), may_move=False)
        executors: dict[int, VirtualExecutor] = {}
        clients: dict[int, VirtualClient] = {}
        servers: dict[int, VirtualServer] = {}
        self._tenants: dict[int, VirtualTenant] = {}
        seconds_per_sample = self._job.compute_s * frames.steps / frames.num_samples

        saved = self._saved_cursors()
        for rank in self.ranks:
            machine = around.machines[rank]
            tenant = VirtualTenant(around.shared[rank], rank, self.name, partial(self._ask, rank), times)
            self._tenants[rank] = tenant
            VirtualExecutor(
                rank,
                frames,
                ServingMachine(seconds_per_sample / machine.speed, machine.bandwidth),
                Delays(),
                around.clock,
                around.network,
                units,
                clients,
                servers,
                executors,
                partial(self._master.report, rank),
                tenant,
                saved,
                None if self._uses_frames else partial(self._flow_client, rank),
            )
        return executors

    def _saved_cursors(self) -> dict[int, Cursor]:
        """How far data blocks are; without frames, all are as far, and there may be other ones."""
        found = self._checkpoint.cursors
        if found and not self._uses_frames:
            found = dict.fromkeys(range(self._frames.num_data_blocks), next(iter(found.values())))
        return {number: Cursor(at.epoch, at.at) for number, at in found.items()}

    def _flow_client(self, rank: int, on_event: Callable[[], None]) -> FlowClient:
        """Return a client that pulls and pushes: each worker waits for its share from the slowest server."""
        around, machines = self._around, self.ranks
        num_bytes = sum(self._job.pull_bytes(self._num_workers, len(machines)))
        seconds = num_bytes / min(around.machines[each].bandwidth for each in machines)
        owners = self._machine.owners("parameters")
        return FlowClient(self.name, around.shared[rank].link, num_bytes, seconds, owners, on_event)

    def _listener(self, rank: int) -> _Listener:
        return _Listener(self._tenants[rank], self._executors[rank])

    # ---- what others see -----------------------------------------------------------------------

    @property
    def saving_s(self) -> float:
        """Seconds that a stop takes here, as measured; 0: it has not stopped yet."""
        return self._saving_s or 0.0

    @property
    def is_done(self) -> bool:
        """Whether nothing is left of the job."""
        return self._end is not None and self._end.outcome == "done"

    def load(self) -> JobLoad:
        """Return the measured load, from at least one iteration."""
        average, frames, job = self.meter.average, self._frames, self._job
        assert average is not None
        return load_of(
            self.name,
            average,
            machines=len(self.ranks),
            data_blocks=frames.num_data_blocks if self._uses_frames else job.data_blocks,
            parameter_blocks=sum(frames.parameter_blocks) if self._uses_frames else job.parameter_blocks,
            iterations_left=float((frames.max_epochs - self._machine.epochs) * frames.steps),
            dense_bytes=self._job.dense_bytes,
            row_growth=self._job.row_growth,
            loading_s=self._loading_s,
            saving_s=self._saving_s,
        )

    def start(self) -> None:
        """Begin; the machines hear of it a message later."""
        self._master.start()

    def stop(self) -> None:
        """Leave after the iteration that goes on."""
        if self._end is None:
            self._master.handle(StopRequested("moves to other machines", gives_up_objective=False))

    def may_communicate(self, ranks: Sequence[int]) -> None:
        """Pulls or pushes of a step may begin."""
        for rank in ranks:
            self._master.order(rank, UseNetwork())

    # ---- what happens --------------------------------------------------------------------------

    def _ask(self, rank: int, message: Message) -> None:
        """A worker asks for the network, or no longer uses it."""
        self._master.hear_from(rank, partial(self._hear_of_network, rank, message))

    def _hear_of_network(self, rank: int, message: Message) -> None:
        synchroniser = self._around.synchroniser
        match message:
            case AskForNetwork(step):
                self._around.grant(synchroniser.ask(self.name, rank, step))
            case NetworkUsed():
                goes_on = self._machine.is_amid_step
                now_s = self._around.clock.now_s
                self._around.grant(synchroniser.used(self.name, rank, now_s, goes_on=goes_on))
                self._around.clock.after(KEEP_S, self._release)

    def _release(self) -> None:
        around = self._around
        around.grant(around.synchroniser.release(around.clock.now_s))

    def note_turn(self, rank: int, turn: TurnDone) -> None:
        """A worker has reported a turn, which the `JobMachine` has not handled yet."""
        if not turn.samples:
            self._around.grant(self._around.synchroniser.idle(self.name, rank, turn.step))
        self.note_disturbance()
        if self.meter.note(rank, turn, self._around.clock.now_s):
            self._around.hears.iterated(self, True)

    @property
    def is_iterating(self) -> bool:
        """Whether its workers do nothing but take turns, whose times are measured."""
        return self._end is None and self._machine.is_iterating and self.meter.is_warm

    def note_disturbance(self) -> None:
        """Note what makes iterations on these machines longer than they are predicted."""
        shared, running = self._around.shared, self._around.running
        names = {name for rank in self.ranks for name in shared[rank].wakes}
        others = [running[name] for name in names if name in running]
        note_disturbance(self, others, self._around.clock.now_s)

    def note_phase(self) -> None:
        """The `JobMachine` has handled an event."""
        now_s = self._around.clock.now_s
        phase = self._machine.phase  # it may have been asked to stop while it was loading
        if self._loading_s is None and phase in ("running", "pausing"):
            self._loading_s = now_s - self.began_s
            self._around.hears.loaded(self)
        if phase == "pausing":
            self._asked_to_save_s = now_s

    def note_manifest(self, asked: WriteManifest) -> None:
        """A checkpoint is complete."""
        saved = self._checkpoint
        saved.number, saved.history = asked.number, asked.history
        saved.cursors = {
            number: cursor
            for executor in self._executors.values()
            for number, cursor in executor.samples.cursors.items()
        }
        self._saving_s = self._around.clock.now_s - self._asked_to_save_s

    def note_end(self, end: End) -> None:
        """The start is over; executors hear of it, leave, and say so."""
        self._end = end
        self._around.grant(self._around.synchroniser.remove(self.name))
        self._around.clock.after(2 * self._around.delays.control_s, self._leave)

    def _leave(self) -> None:
        for rank in self.ranks:
            self._tenants[rank].leave()
        if self._around.running.get(self.name) is self:
            del self._around.running[self.name]
        self._around.hears.left(self)


class _Listener:
    """Hands the master's messages to an executor and its resources."""

    def __init__(self, tenant: VirtualTenant, executor: VirtualExecutor) -> None:
        self._tenant, self._executor = tenant, executor

    def hear(self, message: Message) -> None:
        if self._tenant.hear(message, self._executor.look):
            self._executor.look()
        else:
            self._executor.hear(message)


class _JobMaster(VirtualMaster):
    """Rank 0, as far as it concerns one start of a job."""

    def __init__(self, run: StartedJob, clock: Clock, machine: JobMachine, control: Delay) -> None:
        super().__init__(clock, machine, control, {}, None)
        self._run = run

    def handle(self, event: Event) -> None:
        if self.end is None:
            run = self._run
            if not run.is_iterating:
                run.note_disturbance()
            super().handle(event)
            run.note_phase()
            if not run.is_iterating:
                run.note_disturbance()

    def note_turn(self, executor: int, turn: TurnDone) -> None:
        self._run.note_turn(executor, turn)

    def perform(self, instruction: Instruction) -> None:
        match instruction:
            case End():
                self.end = instruction
                self._run.note_end(instruction)
            case WriteManifest():
                self._run.note_manifest(instruction)
                super().perform(instruction)
            case _:
                super().perform(instruction)


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
