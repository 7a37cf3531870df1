"""A preprocessor rank: makes its blocks of the shared stream, and receives blocks from other nodes."""

from __future__ import annotations

import logging
import time

from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.comm.backoff import Backoff
from hpcbal.comm.channel import Message
from hpcbal.dataplane.cache import SampleCache
from hpcbal.dataplane.producer import Producer
from hpcbal.runtime.rank.context import RankContext
from hpcbal.runtime.wire.protocol import EndStream, PreprocessorReport, Shutdown, StartStream, StreamEnded
from hpcbal.telemetry.streams.slices import PREPROCESS, BusyTrace

log = logging.getLogger(__name__)

REPORT_INTERVAL_S = 1.0


class Preprocessor:
    """Obeys StartStream, EndStream and Shutdown; works in small steps between messages."""

    def __init__(self, context: RankContext, producer: Producer, cache: SampleCache | None = None) -> None:
        self._context = context
        self._cache = cache
        self._producer = producer
        self._last_report_s = time.monotonic()
        self._reported_samples = 0
        self._trace = BusyTrace(context.slices, PREPROCESS)

    def run(self) -> int:
        """Work until Shutdown; returns the exit code that it carries."""
        backoff = Backoff.idle()
        while True:
            found = self._context.channel.receive()
            if found is not None:
                message = found[1]
                if isinstance(message, Shutdown):
                    return message.exit_code
                self._obey(message)
                backoff.reset()
                continue
            worked = self._producer.step()
            self._trace.note(worked)
            if worked:
                backoff.reset()
            else:
                backoff.wait()
            self._context.keep_in_touch("preprocessing" if self._producer.active else "idle")
            if time.monotonic() - self._last_report_s > REPORT_INTERVAL_S:
                self._report()

    def _obey(self, message: Message) -> None:
        if isinstance(message, StartStream):
            self._producer.start(message.plan)
        elif isinstance(message, EndStream):
            self._end_stream(message.generation)
        else:
            raise TypeError(f"a preprocessor got {message!r}")

    def _end_stream(self, generation: int) -> None:
        self._producer.stop()
        backoff = Backoff()
        while self._producer.active:
            if self._producer.step():
                backoff.reset()
            else:
                backoff.wait()
            self._context.keep_in_touch("ending the stream")
        self._report()
        self._trace.end()
        self._context.send_slices()
        self._context.channel.send(SCHEDULER_RANK, StreamEnded(generation))

    def _report(self) -> None:
        self._last_report_s = time.monotonic()
        bad = tuple(self._producer.take_bad())
        if bad or self._producer.samples_made != self._reported_samples:
            self._reported_samples = self._producer.samples_made
            num_from_cache = 0 if self._cache is None else self._cache.num_hits
            self._context.channel.send(
                SCHEDULER_RANK,
                PreprocessorReport(self._producer.samples_made, self._producer.busy_s, bad, num_from_cache),
            )
