"""Sum up what a run reports: costs of DNNs, preprocessing, broken samples, saved epochs."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from hpcbal.errors import DataError
from hpcbal.events.ensemble import CheckpointWritten, groups_started
from hpcbal.events.line import Line
from hpcbal.runtime.resuming.kept_best import SavedWeights
from hpcbal.runtime.resuming.resume import Account
from hpcbal.runtime.wire.protocol import PreprocessorReport
from hpcbal.telemetry.ledger.dnn_lines import BestKeptLine
from hpcbal.telemetry.views.ensemble_table import WeightsStatus
from hpcbal.telemetry.views.summary import Number
from hpcbal.telemetry.views.table import count_text


class Accounts:
    """Sums over all starts of a run.

    Args:
        earlier: accounts of earlier starts, one per DNN; this object adds to them.
        clock: monotonic seconds, for tests.
    """

    def __init__(self, earlier: Mapping[str, Account], clock: Callable[[], float] = time.monotonic) -> None:
        self._accounts = dict(earlier)
        self._clock = clock
        self._joined: dict[str, tuple[float, int]] = {}  # when, and with how many slots

    def admit(self, names: Iterable[str]) -> None:
        """Take in DNNs that have joined, which have cost nothing yet."""
        for name in names:
            self._accounts.setdefault(name, Account())

    def handle(self, line: Line) -> None:
        """Record that groups which start hold their slots from now on."""
        if groups := groups_started(line):
            now = self._clock()
            self._joined.update({group.dnn_id: (now, len(group.slots)) for group in groups})

    def leave(self, dnn_id: str) -> Account:
        """Record that the group of `dnn_id` has released its slots; returns its cost since it joined."""
        cost = self._running(*self._joined.pop(dnn_id))
        account = self._accounts[dnn_id]
        account.wall_time_s += cost.wall_time_s
        account.slot_seconds += cost.slot_seconds
        return cost

    def now(self, dnn_id: str) -> Account:
        """The total cost of `dnn_id` up to now."""
        account = self._accounts[dnn_id]
        if dnn_id not in self._joined:
            return account
        running = self._running(*self._joined[dnn_id])
        return Account(account.wall_time_s + running.wall_time_s, account.slot_seconds + running.slot_seconds)

    def _running(self, joined_s: float, num_slots: int) -> Account:
        wall_time_s = self._clock() - joined_s
        return Account(wall_time_s, wall_time_s * num_slots)


MAX_LIKE = 5
"""Samples with the same fault that the console names."""

MAX_NAMED = 25
"""Broken samples that the console names, whatever their faults."""

_MAX_FAULTS = 3
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")


def fault_of(where: str, reason: str) -> str:
    """The reason without the sample's name and without numbers: equal for samples with the same fault."""
    return _NUMBER.sub("#", reason.replace(where, "") if where else reason)


class BrokenSampleLines:
    """Makes lines for the console, and stops when further ones would say the same."""

    def __init__(self) -> None:
        self._num_by_fault: Counter[str] = Counter()
        self._num_named = 0
        self._is_full = False

    def add(self, where: str, reason: str) -> str | None:
        """The line about one more broken sample; None if there is nothing new to say."""
        if self._is_full:
            return None
        fault = fault_of(where, reason)
        self._num_by_fault[fault] += 1
        num_like = self._num_by_fault[fault]
        if num_like > MAX_LIKE + 1:
            return None
        if num_like == MAX_LIKE + 1:
            return f"more samples are broken like {where}: {reason}; ledger.jsonl names them all"
        self._is_full = self._num_named == MAX_NAMED
        if self._is_full:
            return "more samples are broken; ledger.jsonl names them all"
        self._num_named += 1
        return f"broken sample skipped: {where}: {reason}"


def summary_of_broken(samples: Iterable[tuple[str, str]]) -> str:
    """The most frequent faults, each with one sample that has it: `7 like cat/3.png: truncated`.

    Args:
        samples: name and reason of each broken sample, at least one.
    """
    first: dict[str, str] = {}
    num_by_fault: Counter[str] = Counter()
    for where, reason in samples:
        fault = fault_of(where, reason)
        first.setdefault(fault, f"{where}: {reason}")
        num_by_fault[fault] += 1
    shown = num_by_fault.most_common(_MAX_FAULTS)
    texts = [first[fault] if num == 1 else f"{num} like {first[fault]}" for fault, num in shown]
    num_others = num_by_fault.total() - sum(num for _, num in shown)
    return "; ".join([*texts, f"{num_others} others"] if num_others else texts)


MIN_BUSY_S = 0.02  # below this, a rate depends more on the clock than on the preprocessing


class PreprocessingStats:
    """Sums over the preprocessors, by rank.

    Args:
        max_bad_fraction: fraction of the samples of a pass that may be broken, 0..1.
    """

    def __init__(self, max_bad_fraction: float) -> None:
        self._max_bad_fraction = max_bad_fraction
        self._samples_made: dict[int, int] = {}
        self._from_cache: dict[int, int] = {}
        self._fetched: dict[int, int] = {}
        self._busy_s: dict[int, float] = {}
        self._without_cache: dict[int, tuple[int, float]] = {}  # samples and seconds, before the first hit
        self._busy_s_when_reported = 0.0
        self._has_error = False
        self.bad: dict[int, tuple[str, str]] = {}

    def add(self, rank: int, report: PreprocessorReport) -> list[tuple[int, str, str]]:
        """Add a report; returns the broken samples that were not known yet."""
        self._samples_made[rank] = report.samples_made
        self._from_cache[rank] = report.num_from_cache
        self._fetched[rank] = report.num_fetched
        self._busy_s[rank] = report.busy_s
        if not report.num_from_cache:
            self._without_cache[rank] = (report.samples_made, report.busy_s)
        new = []
        for sample_id, where, reason in report.bad:
            if sample_id not in self.bad:  # each pass meets it again
                self.bad[sample_id] = (where, reason)
                new.append((sample_id, where, reason))
        return new

    @property
    def samples_made(self) -> int:
        return sum(self._samples_made.values())

    @property
    def num_from_cache(self) -> int:
        """How many of the samples were found in a cache."""
        return sum(self._from_cache.values())

    @property
    def num_fetched(self) -> int:
        """How many of these came from the caches of other nodes."""
        return sum(self._fetched.values())

    @property
    def busy_s(self) -> float:
        return sum(self._busy_s.values())

    @property
    def samples_per_s(self) -> float | None:
        """Samples that one preprocessor makes per second of work; None while too little is known."""
        return self.samples_made / self.busy_s if self.samples_made and self.busy_s >= MIN_BUSY_S else None

    def new_rate(self) -> float | None:
        """The rate of one preprocessor for samples that no cache holds, if it should be reported.

        That is at first, and whenever the measured work has doubled. What a rank makes counts until it finds
        samples in a cache. If too little counts, samples from caches are left out instead, but not the time
        that they took, so the real rate is higher.
        """
        counts = self._without_cache.values()
        num_made, busy_s = sum(made for made, _ in counts), sum(seconds for _, seconds in counts)
        if busy_s < MIN_BUSY_S:
            num_made, busy_s = self.samples_made - self.num_from_cache, self.busy_s
        if num_made <= 0 or busy_s < max(MIN_BUSY_S, 2.0 * self._busy_s_when_reported):
            return None
        self._busy_s_when_reported = busy_s
        return num_made / busy_s

    def too_many_bad(self, num_samples: int) -> bool:
        """Whether more than the allowed fraction of `num_samples` samples is broken."""
        return len(self.bad) > self._max_bad_fraction * num_samples

    def error(self, num_samples: int) -> DataError:
        """The error for the user; shows the most frequent faults."""
        self._has_error = True
        return DataError(
            f"{len(self.bad)} of {num_samples} samples are broken, more than data.max_bad_fraction "
            f"({self._max_bad_fraction:g}) allows: {summary_of_broken(self.bad.values())}. Repair "
            "them or raise the limit, then run the same command again"
        )

    def cache_line(self) -> str | None:
        """How many samples were read from the dataset; None if no sample was found in a cache."""
        if not self.num_from_cache:
            return None
        num_read = self.samples_made - self.num_from_cache
        fetched = f", {self.num_fetched} of them in that of another node" if self.num_fetched else ""
        return (
            f"ranks made {count_text(self.samples_made, 'sample')} in this start: they read {num_read} from "
            f"the dataset, and found {self.num_from_cache} in the cache{fetched}"
        )

    def count_line(self) -> str | None:
        """How many samples of this start were left out, and why; None if none, or if the error says it."""
        if not self.bad or self._has_error:
            return None
        num = count_text(len(self.bad), "broken sample")
        return f"{num} left out in this start: {summary_of_broken(self.bad.values())}"


class SavedEpochs:
    """Follows the reports of all groups.

    Args:
        found: what this start has found on disk, by DNN.
    """

    def __init__(self, found: Mapping[str, SavedWeights]) -> None:
        self._by_dnn = dict(found)

    def handle(self, line: Line) -> None:
        """Record a checkpoint, or best weights."""
        match line:
            case CheckpointWritten(dnn_id, epoch):  # without weights, if only the best ones are kept
                last = None if line.only_progress else epoch
                self._by_dnn[dnn_id] = replace(self._of(dnn_id), last=last)
            case BestKeptLine(dnn_id, epoch, metric, value):
                self._by_dnn[dnn_id] = replace(self._of(dnn_id), best=epoch, metric=metric, value=value)

    def status(self, dnn_id: str) -> WeightsStatus | None:
        """For status.json; None if no weights are on disk."""
        saved = self._of(dnn_id)
        if not saved.any:
            return None
        status: WeightsStatus = {"last": saved.last}
        if saved.best:
            value = saved.value if math.isfinite(saved.value) else None
            status["best"] = {"epoch": saved.best, "metric": saved.metric, "value": value}
        return status

    def numbers(self, dnn_id: str) -> dict[str, Number]:
        """For results.csv, see `summary.SAVED`."""
        saved = self._of(dnn_id)
        return {
            "saved_best_epoch": saved.best or None,
            "saved_best_value": saved.value if math.isfinite(saved.value) else None,
            "saved_last_epoch": saved.last,
        }

    def _of(self, dnn_id: str) -> SavedWeights:
        return self._by_dnn.get(dnn_id, SavedWeights())
