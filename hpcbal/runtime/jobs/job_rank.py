"""One rank of a job that has it for itself: it serves and computes as the job's executor."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.comm.channel import Channel, Message
from hpcbal.config import ParamServerConfig
from hpcbal.paramserver.api.batch import DataBlocks
from hpcbal.paramserver.engine.executor import Executor
from hpcbal.paramserver.engine.wire import Tracer, Transport
from hpcbal.paramserver.store.layout import Layout
from hpcbal.paramserver.worker.loading import EmulatedMachine, JobSetup
from hpcbal.runtime.jobs.checkpoint import JOBS_FOLDER, CheckpointFiles
from hpcbal.runtime.jobs.loading import LoadedJob
from hpcbal.runtime.jobs.messages import EndRun, Forget, ForJob, HostJob, Left
from hpcbal.runtime.rank.context import LiveRank
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.streams.slices import COMPUTE, PULL, SERVE, SHOWN_WAIT_S, BusyTrace, SliceRecorder

IN_TOUCH_INTERVAL_S = 0.2
"""Between looks at signals and at the time of the last heartbeat."""

TransportOf = Callable[[int], Transport]
"""Makes the transport of a start by its number."""


class JobChannel(Channel):
    """The control messages of one start of a job.

    Args:
        channel: of the rank.
        start: number of the start.
    """

    def __init__(self, channel: Channel, start: int) -> None:
        self._channel, self._start = channel, start

    @property
    def rank(self) -> int:
        return self._channel.rank

    @property
    def size(self) -> int:
        return self._channel.size

    def send(self, destination: int, message: Message) -> None:
        self._channel.send(destination, ForJob(self._start, message))

    def send_to_all(self, destinations: Sequence[int], message: Message) -> None:
        self._channel.send_to_all(destinations, ForJob(self._start, message))

    def receive(self) -> tuple[int, Message] | None:
        """Return the next message of the job; while it has the rank for itself, no others come."""
        found = self._channel.receive()
        if found is None:
            return None
        source, message = found
        if not isinstance(message, ForJob):
            raise TypeError(f"an executor got {message!r}")
        return source, message.message

    def is_sent(self) -> bool:
        return self._channel.is_sent()


def executor_of(
    order: HostJob,
    loaded: LoadedJob,
    rank: LiveRank,
    transport: Transport,
    channel: Channel,
    machine: EmulatedMachine | None,
    **more: Any,
) -> Executor:
    """Return the executor of a start on this rank.

    Args:
        order: says what to start.
        loaded: its app and data.
        rank: this rank.
        transport: to the other executors.
        channel: to and from the scheduler.
        machine: how fast to be; None: as fast as this rank is.
        more: see `Executor`.
    """
    config = order.config
    job = JobSetup(
        loaded.app,
        order.seed,
        config.mini_batch,
        DataBlocks(loaded.num_samples, order.cut.data),
        Layout(tuple(loaded.tables.values()), order.cut.parameters),
        staleness=config.staleness,
        memory_bytes=config.memory_per_rank,
    )
    files = CheckpointFiles(RunDirectory(rank.output, JOBS_FOLDER).job(order.job), rank.rank, order.saved)
    return Executor(transport, channel, job, machine, files, **more)


class ReportedTrace(Tracer):
    """A trace of an executor whose rank sends it to the scheduler."""

    def attach(self, executor: Executor) -> None:
        """Record what no call tells, once the executor is there."""

    def send(self, rank: LiveRank) -> None:
        """Send what is left when the executor has ended."""


class SliceTrace(ReportedTrace):
    """Records the first turns of each epoch one by one, and all of them in the slice of the epoch.

    Args:
        slices: of this rank.
        job: name of the job.
    """

    def __init__(self, slices: SliceRecorder, job: str) -> None:
        self._slices, self._job = slices, job
        self._serving = BusyTrace(slices, SERVE)
        self._epoch = -1
        self._num_turns = 0
        self._began_s = self._ended_s = self._pull_s = self._compute_s = 0.0

    def turn(
        self,
        epoch: int,
        pull_began_s: float,
        compute_began_s: float,
        compute_ended_s: float,
        num_samples: int = 0,
    ) -> None:
        """See `Tracer`."""
        if epoch != self._epoch:
            self._end_epoch()
            self._epoch, self._began_s = epoch, pull_began_s
        self._num_turns += 1
        self._pull_s += compute_began_s - pull_began_s
        self._compute_s += compute_ended_s - compute_began_s
        self._ended_s = compute_ended_s
        if self._num_turns > self._slices.steps_per_pass:
            return
        if compute_began_s - pull_began_s > SHOWN_WAIT_S:
            self._slices.add(PULL, pull_began_s, compute_began_s)
        self._slices.add(COMPUTE, compute_began_s, compute_ended_s)

    def during(self, kind: str) -> AbstractContextManager[None]:
        """See `Tracer`."""
        return self._slices.during(kind)

    def end(self) -> None:
        """Record what has not ended."""
        self._end_epoch()
        self._serving.end()

    def attach(self, executor: Executor) -> None:
        executor.reactor.add(self.poll_of(executor))

    def send(self, rank: LiveRank) -> None:
        self.end()
        rank.send_slices()

    def poll_of(self, executor: Executor) -> Callable[[float], bool]:
        """A poll that records when an executor without samples answers requests.

        Pauses below 20 ms are not shown. A worker serves while it waits, which the slices of its turns show.
        """
        served, due_s = 0, 0.0

        def poll(now_s: float) -> bool:
            nonlocal served, due_s
            if now_s < due_s:
                return False
            due_s = now_s + BusyTrace.PAUSE_S / 4
            requests = executor.server.load.requests  # since its last report
            if executor.samples.cursors:
                self._serving.end()
            else:
                self._serving.note(requests not in (0, served))
            served = requests
            return False

        return poll

    def _end_epoch(self) -> None:
        if self._num_turns:
            facts = {"turns": self._num_turns, "pull_s": self._pull_s, "compute_s": self._compute_s}
            name = f"{self._job} epoch {self._epoch + 1}"
            self._slices.add("epoch", self._began_s, self._ended_s, name, facts)
        self._epoch, self._num_turns, self._pull_s, self._compute_s = -1, 0, 0.0, 0.0


class JobRank:
    """One rank beside the scheduler, which a job has for itself.

    Args:
        rank: this rank.
        config: the configuration.
        loaded: the job's app and data.
        transport_of: makes the transport of a start.
        trace: records what the executor does.
    """

    def __init__(
        self,
        rank: LiveRank,
        config: ParamServerConfig,
        loaded: LoadedJob,
        transport_of: TransportOf,
        trace: ReportedTrace,
    ) -> None:
        self._rank, self._loaded, self._transport_of, self._trace = rank, loaded, transport_of, trace
        self._emulated = config.machine_of(rank.roles.executor_ranks.index(rank.rank))
        self._due_s = 0.0

    def run(self) -> int:
        """Serve until the scheduler says `EndRun`; returns its exit code."""
        channel = self._rank.channel
        while True:
            _, message = channel.wait(self._look)
            match message:
                case HostJob():
                    self._work(message)
                case Forget():
                    pass  # there is no other job
                case EndRun(exit_code):
                    return exit_code
                case _:
                    raise TypeError(f"a rank got {message!r}")

    def _work(self, order: HostJob) -> None:
        """Work for a start of the job, until the scheduler ends it."""
        rank, emulated = self._rank, self._emulated
        machine = None
        if emulated is not None:
            machine = EmulatedMachine(emulated.seconds_per_sample, emulated.speed, emulated.bandwidth)
        transport, channel = self._transport_of(order.start), JobChannel(rank.channel, order.start)
        executor = executor_of(order, self._loaded, rank, transport, channel, machine, trace=self._trace)
        # An app that computes may hang, in whichever thread, so its rank shows no sign of life meanwhile.
        executor.reactor.add(lambda now_s: not executor.is_at_objective and self._keep_in_touch(now_s))
        self._trace.attach(executor)
        executor.run()
        self._trace.send(rank)
        executor.close()
        rank.channel.send(SCHEDULER_RANK, Left(order.start))

    def _look(self) -> None:
        self._keep_in_touch(time.monotonic())

    def _keep_in_touch(self, now_s: float) -> bool:
        """Report signals and send heartbeats."""
        if now_s >= self._due_s:
            self._due_s = now_s + IN_TOUCH_INTERVAL_S
            self._rank.keep_in_touch("serving and computing")
        return False
