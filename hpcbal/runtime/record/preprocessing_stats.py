"""Sum up the preprocessors' reports: their speed, and the broken samples."""

from __future__ import annotations

from hpcbal.errors import DataError
from hpcbal.runtime.record.broken_samples import summary_of_broken
from hpcbal.runtime.wire.protocol import PreprocessorReport
from hpcbal.telemetry.views.table import count_text

MIN_BUSY_S = 0.02  # below this, a rate depends more on the clock than on the preprocessing


class PreprocessingStats:
    """Sums over the preprocessors, by rank.

    Args:
        max_bad_fraction: fraction of the samples of a pass that may be broken, 0..1.
    """

    def __init__(self, max_bad_fraction: float) -> None:
        self._max_bad_fraction = max_bad_fraction
        self._samples_made: dict[int, int] = {}
        self._busy_s: dict[int, float] = {}
        self._busy_s_when_reported = 0.0
        self._has_error = False
        self.bad: dict[int, tuple[str, str]] = {}

    def add(self, rank: int, report: PreprocessorReport) -> list[tuple[int, str, str]]:
        """Add a report; returns the broken samples that were not known yet."""
        self._samples_made[rank] = report.samples_made
        self._busy_s[rank] = report.busy_s
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
    def busy_s(self) -> float:
        return sum(self._busy_s.values())

    @property
    def samples_per_s(self) -> float | None:
        """Samples that one preprocessor makes per second of work; None while too little is known."""
        return self.samples_made / self.busy_s if self.samples_made and self.busy_s >= MIN_BUSY_S else None

    def new_rate(self) -> float | None:
        """`samples_per_s` if it should be reported: at first, and whenever the measured work has doubled."""
        if self.samples_per_s is None or self.busy_s < 2.0 * self._busy_s_when_reported:
            return None
        self._busy_s_when_reported = self.busy_s
        return self.samples_per_s

    def too_many_bad(self, num_samples: int) -> bool:
        """Whether more than the allowed fraction of `num_samples` samples is broken."""
        return len(self.bad) > self._max_bad_fraction * num_samples

    def error(self, num_samples: int) -> DataError:
        """The error for the user; shows the most frequent faults."""
        self._has_error = True
        return DataError(
            f"{len(self.bad)} of {num_samples} samples are broken, more than data.max_bad_fraction "
            f"({self._max_bad_fraction:g}) allows: {summary_of_broken(self.bad.values())}. Repair them, or "
            "raise the limit, then run the same command again"
        )

    def count_line(self) -> str | None:
        """How many samples of this start were left out, and why; None if none, or if the error says it."""
        if not self.bad or self._has_error:
            return None
        num = count_text(len(self.bad), "broken sample")
        return f"{num} left out in this start: {summary_of_broken(self.bad.values())}"
