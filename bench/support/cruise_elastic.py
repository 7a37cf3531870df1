"""Emulated jobs that gain and lose executors, or have unlike ones: what Cruise saves, what a change costs.

Both jobs are those of [PS] Sec. 3.4.4 and 3.4.5, scaled to 16 executors that fit on two cores: real ranks and
messages, paced computing and links.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from support.starting import train

from hpcbal.telemetry.ledger import Entry, ExecutorsChangedLine, JobEpochLine, ReconfiguredLine

STALL_ALLOWED = 0.05
CHEAPER = 6.7
"""A static machine costs so many times what an opportunistic one does ([PS] Sec. 3.4.4)."""

PAPER_TIME_SAVED, PAPER_COST_SAVED = 0.184, 0.12
PAPER_UNLIKE_SAVED = 0.352
"""[PS] Sec. 3.4.5, NMF from (25 + 2, 3 + 2)."""

SECONDS_PER_SAMPLE, BANDWIDTH = 0.02, 2e6
ROWS, COLUMNS = 256, 250
"""Of the model, in float32. Computing a mini-batch of 40 samples takes 6 times as long as transferring it,
as in NMF."""

BATCH = 40
"""Samples of a worker's turn; in `sync`, of each of 6 workers."""

FEW, MANY = 8, 16
FEW_ROLES = (6, 2)
"""The best workers and servers of 8 equal executors."""

PHASES = (7, 9, 6, 9)
"""Epochs with few, many, few and many executors: about as long as each other."""

NUM_SAMPLES, SAMPLE_BYTES = 1440, 66_000
"""The samples that move take a link about as long as an epoch, as in Sec. 3.4.4."""

UNLIKE = ((12, 1), (1, 4), (2, 1), (1, 4))
"""Half of (25 + 2, 3 + 2), in order: so many machines, so many times as fast as slow ones."""

UNLIKE_ROLES = (13, 3)
UNLIKE_SAMPLES, UNLIKE_SAMPLE_BYTES = 13 * 8 * BATCH, 20_000
STEADY_EPOCHS, TUNED_EPOCHS = 5, 12


@dataclass(frozen=True)
class Turn:
    """A turn of a worker, from the moment at which the one before had been computed, in seconds."""

    start_s: float
    end_s: float


@dataclass(frozen=True)
class Change:
    """A reconfiguration, in seconds of Unix time."""

    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end_s - self.start_s


def config(output: Path, mode: str, **changes: Any) -> dict[str, Any]:
    """The file of a job with 16 executors."""
    return {
        "kind": "paramserver",
        "name": "elastic",
        "output": {"dir": str(output)},
        "app": "workloads.serving:Sized",
        "args": {"num_rows": ROWS, "num_columns": COLUMNS},
        "data": {
            "dataset": "workloads.serving:Empty",
            "args": {"num_samples": NUM_SAMPLES, "sample_bytes": SAMPLE_BYTES},
        },
        "mini_batch": BATCH if mode == "async" else BATCH * FEW_ROLES[0],
        "consistency": mode,
        "stop": {"max_epochs": sum(PHASES)},
        "objective": {"every": 1000},
        "workers": FEW_ROLES[0],
        "servers": FEW_ROLES[1],
        "executors": {"start": FEW},
        "slots": {"per_node": MANY},
        "checkpoint": {"interval_s": 3600},
        "timeline": {"steps_per_pass": 1_000_000},
        "machines": [{"count": MANY, "seconds_per_sample": SECONDS_PER_SAMPLE, "bandwidth": BANDWIDTH}],
        **changes,
    }


def elastic_schedule() -> list[dict[str, int]]:
    """Executors that come, go and come again ([PS] Fig. 3.5)."""
    ends = itertools.accumulate(PHASES[:-1])
    return [{"after_epoch": end, "use": use} for end, use in zip(ends, (MANY, FEW, MANY), strict=True)]


def turns_of(output: Path) -> dict[int, list[Turn]]:
    """All turns of each worker, from the timeline."""
    with gzip.open(output / "timeline.json.gz", "rt", encoding="utf-8") as file:
        events = json.load(file)
    ends: dict[int, list[float]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "compute":
            ends[event["tid"]].append((event["ts"] + event["dur"]) / 1e6)
    return {
        track: [Turn(start, end) for start, end in itertools.pairwise(sorted(found))]
        for track, found in ends.items()
    }


def changes_of(entries: Iterable[Entry]) -> list[Change]:
    """All reconfigurations, from the ledger."""
    return [
        Change(entry.unix_s - float(entry.line.seconds), entry.unix_s)
        for entry in entries
        if isinstance(entry.line, ReconfiguredLine)
    ]


def stalled_s(turns: Mapping[int, Sequence[Turn]], changes: Sequence[Change], number: int) -> float:
    """How long training stood still during a change.

    A turn was held up if it took longer than 95 of 100 turns of the worker since the change before, and than
    95 of 100 until the next change. What it took beyond both medians counts. The result is the mean over the
    workers that worked before and after.
    """
    change = changes[number]
    first_s = changes[number - 1].end_s if number else -math.inf
    last_s = changes[number + 1].start_s if number + 1 < len(changes) else math.inf
    found = []
    for of_worker in turns.values():
        before = [t.end_s - t.start_s for t in of_worker if first_s < t.start_s and t.end_s <= change.start_s]
        after = [t.end_s - t.start_s for t in of_worker if change.end_s <= t.start_s and t.end_s < last_s]
        if before and after:
            usual_s = max(statistics.median(before), statistics.median(after))
            longest_s = float(max(np.quantile(before, 0.95), np.quantile(after, 0.95)))
            of_change = [t for t in of_worker if t.end_s > change.start_s and t.start_s < change.end_s]
            during = [t.end_s - t.start_s for t in of_change]
            found.append(sum(seconds - usual_s for seconds in during if seconds > longest_s))
    return statistics.mean(found)


def epochs_of(entries: Iterable[Entry]) -> list[float]:
    """Seconds of each epoch."""
    return [float(entry.line.seconds) for entry in entries if isinstance(entry.line, JobEpochLine)]


def steady_epoch_s(config_of_run: Mapping[str, Any], folder: Path) -> float:
    """Mean epoch of a job that never changes, without the first and the last."""
    folder.mkdir()
    fixed = {**config_of_run, "tune": {"enabled": False}, "stop": {"max_epochs": STEADY_EPOCHS}}
    return statistics.mean(epochs_of(train({**fixed, "output": {"dir": str(folder / "run")}}, folder))[1:-1])


def elastic(mode: str) -> dict[str, float]:
    """Executors double and halve; keys end with the mode."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain = config(folder / "run", mode)
        fixed_s = sum(PHASES) * steady_epoch_s(plain, folder / "fixed")
        entries = train({**plain, "executors": {"start": FEW, "schedule": elastic_schedule()}}, folder)
        turns = turns_of(folder / "run")
    changes = changes_of(entries)
    elastic_s = sum(epochs_of(entries))
    moments = [entry.unix_s for entry in entries if isinstance(entry.line, ExecutorsChangedLine)]
    last_s = next(entry.unix_s for entry in reversed(entries) if isinstance(entry.line, JobEpochLine))
    extra_s = sum(end - start for start, end in zip(moments[::2], [*moments[1::2], last_s], strict=False))
    cost = FEW * elastic_s + (MANY - FEW) * extra_s / CHEAPER
    stalls = [stalled_s(turns, changes, number) for number in range(len(changes))]
    result = {
        "time_saved": 1 - elastic_s / fixed_s,
        "cost_saved": 1 - cost / (FEW * fixed_s),
        "executor_seconds": FEW * elastic_s + (MANY - FEW) * extra_s,
        "change_s_max": max(change.seconds for change in changes),
        "num_changes": len(changes),
        "stall": sum(stalls) / sum(change.seconds for change in changes),
    }
    for change, stall in zip(changes, stalls, strict=True):
        print(f"  reconfigured in {change.seconds:.1f} s, stood still for {stall:.2f} s", flush=True)
    print(
        f"executors {FEW} <-> {MANY}, {mode}: {sum(PHASES)} epochs in {elastic_s:.0f} s, {fixed_s:.0f} s "
        f"with {FEW} alone: time saved {result['time_saved']:.1%} (paper {PAPER_TIME_SAVED:.1%}), cost saved "
        f"{result['cost_saved']:.1%} (paper {PAPER_COST_SAVED:.0%})",
        flush=True,
    )
    return {f"{key}_{mode}": value for key, value in result.items()}


def unlike() -> dict[str, float]:
    """Two kinds of machines, from a bad start."""
    machines = [
        {
            "count": count,
            "speed": times,
            "seconds_per_sample": SECONDS_PER_SAMPLE,
            "bandwidth": times * BANDWIDTH,
        }
        for count, times in UNLIKE
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain = config(
            folder / "run",
            "async",
            data={
                "dataset": "workloads.serving:Empty",
                "args": {"num_samples": UNLIKE_SAMPLES, "sample_bytes": UNLIKE_SAMPLE_BYTES},
            },
            workers=UNLIKE_ROLES[0],
            servers=UNLIKE_ROLES[1],
            executors={"start": MANY},
            machines=machines,
            stop={"max_epochs": TUNED_EPOCHS},
        )
        fixed_s = steady_epoch_s(plain, folder / "fixed")
        entries = train(plain, folder)
    lines = [(i, entry.line) for i, entry in enumerate(entries) if isinstance(entry.line, ReconfiguredLine)]
    last, line = lines[-1]
    after = epochs_of(entries[last:])
    assert len(after) > 2, "the job was still changing when it ended"
    tuned_s = statistics.mean(after[1:-1])
    saved = 1 - tuned_s / fixed_s
    fast = [times > 1 for count, times in UNLIKE for _ in range(count)]
    ends = "; ".join(
        f"{sum(not f for f, r in zip(fast, line.roles, strict=True) if r == role)} slow and "
        f"{sum(f for f, r in zip(fast, line.roles, strict=True) if r == role)} fast as {role}s"
        for role in ("worker", "server")
    )
    print(
        f"unlike machines, async: from 12 + 1 workers and 2 + 1 servers, epoch {fixed_s:.2f} s, to {ends}, "
        f"{tuned_s:.2f} s: saves {saved:.1%} (paper {PAPER_UNLIKE_SAVED:.1%})",
        flush=True,
    )
    return {"unlike_saved": saved, "unlike_num_changes": len(changes_of(entries))}


def changed(modes: Sequence[str] = ("sync", "async")) -> Mapping[str, Any]:
    """The keys of executors that come and go, and of unlike ones."""
    result: dict[str, Any] = {}
    for mode in modes:
        result |= elastic(mode)
    result["stall_share"] = max(result[f"stall_{mode}"] for mode in modes)
    print(f"stall_share {result['stall_share']:.3f} (at most {STALL_ALLOWED})")
    return result | unlike()
