"""Predict what a run takes on one allocation or on several, and how much of it is used."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hpcbal.cluster.walltime import WALLTIME_MARGIN_S
from hpcbal.planning.calibration import MOST_RUNS, EarlierRun, TimeBand, time_band
from hpcbal.telemetry.files.json_lines import duration_text
from hpcbal.telemetry.views.table import count_text, format_table

ASSUMED_CHECKPOINT_S = 30.0
"""A checkpoint takes so long where no earlier run has measured one."""

MOST_NODES = 256
"""Larger allocations are not tried."""


@dataclass(frozen=True, slots=True)
class PredictedRun:
    """A simulated run, without the start of its ranks.

    Attributes:
        seconds: from the first work of its ranks to the end, above 0.
        busy: share of the slots' time in which they train, 0..1; None: not known.
    """

    seconds: float
    busy: float | None


@dataclass(frozen=True, slots=True)
class AllocationPrediction:
    """A run on one allocation.

    Attributes:
        num_nodes, num_slots: of the allocation.
        wall_time_s: predicted time from the command to the end.
        band: how far that may be off.
        busy: share of the slots' time in which they train, 0..1, its start included; None: not known.
        checkpoint_s: of the slowest checkpoint of earlier runs, or an assumption.
    """

    num_nodes: int
    num_slots: int
    wall_time_s: float
    band: TimeBand
    busy: float | None
    checkpoint_s: float

    @classmethod
    def of(
        cls, predicted: PredictedRun, num_nodes: int, num_slots: int, runs: Sequence[EarlierRun]
    ) -> AllocationPrediction:
        """Return the prediction of a predicted run, with what earlier ones of its kind took."""
        band = time_band(predicted.seconds, runs)
        wall_time_s = predicted.seconds + band.startup_s
        busy = None if predicted.busy is None else predicted.busy * predicted.seconds / wall_time_s
        longest_s = max((run.checkpoint_s for run in runs[-MOST_RUNS:]), default=ASSUMED_CHECKPOINT_S)
        return cls(num_nodes, num_slots, wall_time_s, band, busy, longest_s)

    @property
    def lead_s(self) -> int:
        """Return how long before its end a job is asked to stop, in whole minutes.

        It is the time of a checkpoint, and the margin at which a run stops cleanly in any case.
        """
        return 60 * math.ceil((WALLTIME_MARGIN_S + self.checkpoint_s) / 60.0)

    @property
    def ask_s(self) -> int:
        """Return the walltime to request, in whole minutes.

        A run at the upper end of the band ends before it is asked to stop; and there are two minutes before
        that at least, because a job script ignores a signal that Slurm may send as the job begins.
        """
        return max(120, 60 * math.ceil(self.band.high_s / 60.0)) + self.lead_s

    @property
    def ask_text(self) -> str:
        """Return the walltime to request, as H:MM:SS."""
        return duration_text(self.ask_s)

    def node_hours(self, seconds: float) -> float:
        """Return the node-hours of so many seconds on this allocation."""
        return self.num_nodes * seconds / 3600.0

    def lines(self) -> list[str]:
        """Return time, node-hours and use for users."""
        band = self.band
        hours = [hours_text(self.node_hours(s)) for s in (band.median_s, band.low_s, band.high_s)]
        lines = [
            f"{band.title}: {duration_text(band.low_s)} to "
            f"{duration_text(band.high_s)}, median {duration_text(band.median_s)} ({band.why})",
            f"node-hours: {hours[0]} ({hours[1]} to {hours[2]}) on {count_text(self.num_nodes, 'node')}",
        ]
        if self.busy is not None:
            lines.append(f"busy: {self.busy:.0%} of the slots' time")
        lines.append(f"walltime to request: {self.ask_text}")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        band = self.band
        return {
            "num_nodes": self.num_nodes,
            "num_slots": self.num_slots,
            "wall_time_s": self.wall_time_s,
            "band": band.to_dict(),
            "node_hours": {
                "low": self.node_hours(band.low_s),
                "median": self.node_hours(band.median_s),
                "high": self.node_hours(band.high_s),
            },
            "busy": self.busy,
            "checkpoint_s": self.checkpoint_s,
            "ask_s": self.ask_s,
        }


def hours_text(hours: float) -> str:
    """`0.034`, `1.2`, `1234`."""
    return f"{hours:.0f}" if hours >= 100.0 else f"{hours:.2g}"


def largest_keeping(predictions: Iterable[AllocationPrediction], use: float) -> AllocationPrediction | None:
    """Return the largest allocation whose slots are busy for at least the share `use`; None: none."""
    kept = [each for each in predictions if each.busy is not None and each.busy >= use]
    return max(kept, key=lambda each: each.num_slots, default=None)


def largest_tried(prediction_of: Callable[[int], AllocationPrediction], use: float) -> AllocationPrediction:
    """Return the largest allocation that keeps `use`, or of one node if none does.

    Numbers of nodes double until two in a row do not keep it, then the gap above the last one that does is
    bisected. More nodes are not always used less, so a larger number may keep it by chance, and is not found.

    Args:
        prediction_of: makes the prediction of a number of nodes, 1 to MOST_NODES.
        use: 0..1.
    """
    tried: dict[int, AllocationPrediction] = {}

    def keeps(count: int) -> bool:
        if count not in tried:
            tried[count] = prediction_of(count)
        busy = tried[count].busy
        return busy is not None and busy >= use

    count, num_failed = 1, 0
    while count <= MOST_NODES and num_failed < 2:
        num_failed = 0 if keeps(count) else num_failed + 1
        count *= 2
    best = max((count for count in tried if keeps(count)), default=None)
    if best is None:
        return tried[1]
    too_many = min((count for count in tried if count > best), default=best + 1)
    while too_many - best > 1:
        middle = (best + too_many) // 2
        best, too_many = (middle, too_many) if keeps(middle) else (best, middle)
    return tried[best]


def side_by_side(
    predictions: Sequence[AllocationPrediction], chosen: AllocationPrediction | None
) -> list[str]:
    """Return the table of one or more allocations for users; `*` marks the chosen one."""
    rows = [
        [
            "*" if each is chosen else "",
            str(each.num_slots),
            str(each.num_nodes),
            duration_text(each.wall_time_s),
            f"{duration_text(each.band.low_s)} to {duration_text(each.band.high_s)}",
            hours_text(each.node_hours(each.wall_time_s)),
            "-" if each.busy is None else f"{each.busy:.0%}",
            each.ask_text,
        ]
        for each in predictions
    ]
    band = predictions[0].band.title.removesuffix(" runs")
    headers = ["", "slots", "nodes", "wall time", band, "node-hours", "busy", "request"]
    return format_table(headers, rows, right=(1, 2, 3, 5, 6, 7))
