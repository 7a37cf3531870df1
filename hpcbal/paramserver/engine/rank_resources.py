"""Where an executor runs: alone on its rank, or beside executors of other jobs (`shared_machine`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from hpcbal.comm.channel import Channel, Message
from hpcbal.paramserver.engine.buffers import Buffers
from hpcbal.paramserver.engine.reactor import Reactor
from hpcbal.paramserver.engine.transport import Transport
from hpcbal.paramserver.engine.wire import PacedLink
from hpcbal.paramserver.worker.job import JobSetup
from hpcbal.paramserver.worker.resources import Resources
from hpcbal.paramserver.worker.samples import WorkerSamples


class RankResources:
    """A rank that one executor has for itself.

    Args:
        bytes_per_s: of the link in each direction, in emulation; None: as fast as it is.

    Attributes:
        link: of the machine; None: not paced.
        subtasks: says when each subtask of a turn may start.
    """

    def __init__(self, bytes_per_s: float | None = None) -> None:
        self.link = None if bytes_per_s is None else PacedLink(bytes_per_s)
        self.subtasks = Resources()

    def reactor(
        self, transport: Transport, channel: Channel, on_message: Callable[[Message], None]
    ) -> Reactor:
        """The loop of the executor; see `Reactor`."""
        reactor = Reactor(transport, channel, on_message)
        if self.link is not None:
            reactor.add(self.link.poll)
        return reactor

    def buffers(self, limit_bytes: int | None) -> Buffers:
        """The buffers of the executor.

        Args:
            limit_bytes: of what it holds, if it has its memory for itself; None: no limit.
        """
        return Buffers(limit_bytes)

    def samples(self, job: JobSetup, on_change: Callable[[], None]) -> WorkerSamples:
        """The data blocks of the executor.

        Args:
            job: to train.
            on_change: called when they have come to take more or less memory without the executor's doing.
        """
        return WorkerSamples(job.cut, job.seed, None if job.is_async else job.steps, job.mini_batch)

    def aside(self) -> AbstractContextManager[None]:
        """Work on what only this executor knows: files, and batches that are put together."""
        return nullcontext()

    def taking(self, reactor: Reactor, seconds: float) -> AbstractContextManager[None]:
        """Let the block take so many seconds of an emulated machine's cores, and serve meanwhile."""
        return _taking(reactor, seconds)


@contextmanager
def _taking(reactor: Reactor, seconds: float) -> Iterator[None]:
    until_s = time.monotonic() + seconds
    yield
    reactor.sleep_until(until_s)
