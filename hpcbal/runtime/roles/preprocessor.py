"""A preprocessor rank: makes its blocks of the shared stream, and receives blocks from other nodes."""

from __future__ import annotations

import logging
import time
from collections import deque

from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.comm.backoff import Backoff
from hpcbal.comm.channel import Message
from hpcbal.dataplane.maker import BatchMaker
from hpcbal.dataplane.neighbours import CacheWithNeighbours, GiveSamples, WantSamples
from hpcbal.dataplane.producer import Producer
from hpcbal.runtime.rank.context import RankContext
from hpcbal.runtime.wire.protocol import (
    EndStream,
    FillCache,
    PreprocessorReport,
    Shutdown,
    StartStream,
    StreamEnded,
)
from hpcbal.telemetry.streams.slices import PREPROCESS, BusyTrace

log = logging.getLogger(__name__)

REPORT_INTERVAL_S = 1.0


class Preprocessor:
    """Obeys StartStream, EndStream, FillCache and Shutdown; works in small steps between messages.

    It also answers ranks of other nodes that want samples of its node's cache.

    Args:
        producer: makes this rank's blocks.
        maker: puts samples into the cache of the node; None if it has none.
        num_local, index: preprocessors of the node, and the place of this one among them.
        neighbours: the cache, if other nodes have some, too.
    """

    def __init__(
        self,
        context: RankContext,
        producer: Producer,
        maker: BatchMaker | None = None,
        num_local: int = 1,
        index: int = 0,
        neighbours: CacheWithNeighbours | None = None,
    ) -> None:
        self._context = context
        self._producer = producer
        self._maker = maker
        self._neighbours = neighbours
        self._mine = slice(index, None, num_local)
        self._to_fill: deque[int] = deque()
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
                    if self._neighbours is not None:
                        self._neighbours.end(self._context.channel.receive)
                    return message.exit_code
                self._obey(*found)
                backoff.reset()
                continue
            if self._neighbours is not None and self._neighbours.has_work:
                self._neighbours.progress()
            worked = self._producer.step() or self._fill_cache()
            self._trace.note(worked)
            if worked:
                backoff.reset()
            else:
                backoff.wait()
            is_active = self._producer.active or bool(self._to_fill)
            self._context.keep_in_touch("preprocessing" if is_active else "idle")
            if time.monotonic() - self._last_report_s > REPORT_INTERVAL_S:
                self._report()

    def _obey(self, source: int, message: Message) -> None:
        if isinstance(message, WantSamples | GiveSamples):
            assert self._neighbours is not None, f"rank {source} asks a node that has no cache"
            self._neighbours.serve(source, message)
        elif isinstance(message, StartStream):
            self._producer.start(message.plan)
        elif isinstance(message, EndStream):
            self._end_stream(message.generation)
        elif isinstance(message, FillCache):
            if self._maker is not None:
                samples = self._maker.samples
                # Balanced classes draw some samples later than in this pass.
                later = samples.train_ids.tolist()
                ids = dict.fromkeys([*samples.ids_of_pass(message.pass_index).tolist(), *later])
                self._to_fill.extend(list(ids)[self._mine])
        else:
            raise TypeError(f"a preprocessor got {message!r}")

    def _fill_cache(self) -> bool:
        """Put one sample into the cache; returns whether there was one to make."""
        if self._maker is None or not self._to_fill:
            return False
        cache = self._maker.samples.cache
        if cache is None or cache.is_full:
            self._to_fill.clear()
            return False
        sample_id = self._to_fill.popleft()
        if cache.is_missing(sample_id) and cache.claim(sample_id):
            self._maker.keep(sample_id)
        return True

    def _end_stream(self, generation: int) -> None:
        self._to_fill.clear()
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
        bad, num_from_cache, warning, num_fetched = self._producer.take_bad(), 0, "", 0
        samples_made, busy_s = self._producer.samples_made, self._producer.busy_s
        if self._maker is not None:
            bad += self._maker.take_bad()
            samples_made, busy_s = samples_made + self._maker.samples_made, busy_s + self._maker.busy_s
            num_from_cache, warning = self._maker.num_from_cache, self._maker.take_warning()
            num_fetched = self._maker.num_fetched
        if bad or warning or samples_made != self._reported_samples:
            self._reported_samples = samples_made
            report = PreprocessorReport(
                samples_made, busy_s, tuple(bad), num_from_cache, warning, num_fetched
            )
            self._context.channel.send(SCHEDULER_RANK, report)
