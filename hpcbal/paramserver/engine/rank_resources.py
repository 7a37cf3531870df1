"""Where an executor runs: alone on its rank, or beside executors of other jobs (`shared_machine`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

from hpcbal.comm.channel import Channel, Message
from hpcbal.paramserver.engine.buffers import Buffers
from hpcbal.paramserver.engine.reactor import Reactor
from hpcbal.paramserver.engine.wire import PacedLink, Transport
from hpcbal.paramserver.worker.loading import JobSetup
from hpcbal.paramserver.worker.resources import Resources
from hpcbal.paramserver.worker.samples import WorkerSamples

T = TypeVar("T")


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

    def apart(self, work: Callable[[], T]) -> Future[T]:
        """Do work of the app in a thread of its own, and serve meanwhile; the thread may be left behind."""
        return in_thread(work)

    def taking(self, reactor: Reactor, seconds: float) -> AbstractContextManager[None]:
        """Let the block take so many seconds of an emulated machine's cores, and serve meanwhile."""
        return _taking(reactor, seconds)


def in_thread(
    work: Callable[[], T], name: str | None = None, then: Callable[[], None] | None = None
) -> Future[T]:
    """Do work in a thread that does not keep the process alive.

    Args:
        work: what it returns or raises is the result.
        name: of the thread; None: that of this thread.
        then: called in the thread at the end.
    """
    result = Future[T]()

    def perform() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)
        if then is not None:
            then()

    threading.Thread(target=perform, name=name or threading.current_thread().name, daemon=True).start()
    return result


@contextmanager
def _taking(reactor: Reactor, seconds: float) -> Iterator[None]:
    until_s = time.monotonic() + seconds
    yield
    reactor.sleep_until(until_s)
