"""Runs and their predictions: a file of the user with what they took, and how far a prediction may be off.

A run appends its line when it ends; `hpcbal plan` reads the lines of runs like the planned one. No lock is
needed: a line is written at once, and a line that is not whole is skipped.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcbal import env
from hpcbal.config import RunConfig
from hpcbal.errors import HpcbalError, InputError
from hpcbal.telemetry.files.json_lines import encode_line, object_of, utc_text
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.views.table import count_text

if TYPE_CHECKING:
    from hpcbal.telemetry.ledger.run import NodeFacts, WholeRun
import statistics
from fractions import Fraction

FORMAT = 1
MOST_BYTES = 1 << 20
"""Only the end of a longer file is read: some 3,000 runs."""

_SLURM_CONF = "/etc/slurm/slurm.conf"
_CLUSTER = re.compile(r"^\s*ClusterName\s*=\s*(\S+)", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RunKey:
    """Runs with equal keys are predicted equally well, so that one tells something about another.

    Attributes:
        kind: kind of the run.
        backend: what computes: the backend of an ensemble; of parameter-server jobs `emulated` or `real`.
        site: name of the cluster; empty where there is none.
    """

    kind: str
    backend: str
    site: str

    @classmethod
    def of(cls, config: RunConfig) -> RunKey:
        """Return the key of runs of this configuration, here."""
        return cls(config.kind, config.computed_by, site_name())


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """A run that was done to its end.

    Attributes:
        predicted_s: seconds that were predicted from the first work of its ranks to the end, above 0.
        startup_s: seconds from the command to the first work of its ranks, in its first start.
        active_s: seconds from the command to the end, over all starts, without queues between them; above 0.
        checkpoint_s: of the slowest checkpoint.
        num_nodes, num_slots: of the allocation.
        predicted_busy: predicted share of the slots' time, 0..1, in which they train, after the start; None:
            not predicted.
        busy: measured share, start included.
    """

    predicted_s: float
    startup_s: float
    active_s: float
    checkpoint_s: float
    num_nodes: int
    num_slots: int
    predicted_busy: float | None
    busy: float

    @classmethod
    def of(cls, whole: WholeRun, nodes: Sequence[NodeFacts]) -> EarlierRun | None:
        """Return the run that a ledger has recorded on these nodes; None if it was not predicted."""
        if whole.predicted_s is None:
            return None
        run = cls(
            whole.predicted_s,
            whole.startup_s,
            whole.active_s,
            whole.checkpoint_s,
            len(nodes),
            sum(node.num_slots for node in nodes),
            whole.predicted_busy,
            whole.busy,
        )
        return run if run.is_valid() else None

    def is_valid(self) -> bool:
        """Return whether all values are of their type and in their range."""
        seconds = (self.predicted_s, self.startup_s, self.active_s, self.checkpoint_s)
        shares = [self.busy, *([] if self.predicted_busy is None else [self.predicted_busy])]
        return (
            all(_is_number(value) for value in (*seconds, *shares))
            and self.predicted_s > 0.0
            and self.active_s > 0.0
            and min(seconds) >= 0.0
            and all(0.0 <= share <= 1.0 for share in shares)
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def calibration_file() -> Path:
    """Return the file: $HPCBAL_CALIBRATION, or hpcbal/runs.jsonl in the user's directory for state."""
    given = env.read("HPCBAL_CALIBRATION")
    if given is not None:
        return Path(given)
    state = env.read("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    if state.startswith("~"):  # the user has no home directory
        return Path(os.devnull)
    return Path(state) / "hpcbal" / "runs.jsonl"


def site_name(environ: Mapping[str, str] | None = None) -> str:
    """Return the name of the Slurm cluster that this is, or whose login node; empty where there is none."""
    given = env.read("SLURM_CLUSTER_NAME", environ)
    if given is not None:
        return given
    try:
        text = Path(env.read("SLURM_CONF", environ) or _SLURM_CONF).read_text("utf-8", "replace")
    except OSError:
        return ""
    found = _CLUSTER.search(text)
    return "" if found is None else found[1]


def append_run(key: RunKey, run: EarlierRun, path: Path | None = None) -> None:
    """Append the line of a finished run, in one write.

    Raises:
        OSError: if the file or its directory cannot be made or written.
    """
    target = calibration_file() if path is None else path
    target.parent.mkdir(parents=True, exist_ok=True)
    line = encode_line({"format": FORMAT, "ended": utc_text(), **asdict(key), **asdict(run)})
    descriptor = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def read_runs(key: RunKey, warn: Callable[[str], None], path: Path | None = None) -> list[EarlierRun]:
    """Return the runs with this key, the latest last; none if there is no file.

    Args:
        warn: takes one sentence if lines were skipped, or if the file cannot be read.
    """
    source = calibration_file() if path is None else path
    try:
        lines = _last_lines(source)
    except FileNotFoundError:
        return []
    except OSError as error:
        warn(f"{source}: earlier runs are not known, because it cannot be read: {error.strerror or error}")
        return []
    found: list[EarlierRun] = []
    num_skipped = 0
    for line in lines:
        plain = object_of(line)
        run = None if plain is None else _run_of(plain)
        if plain is None or run is None:
            num_skipped += 1
        elif all(plain.get(field.name) == getattr(key, field.name) for field in fields(key)):
            found.append(run)
    if num_skipped:
        warn(
            f"{source}: skipped {count_text(num_skipped, 'line')}, damaged or of another version of hpcbal; "
            "remove them to end this warning"
        )
    return found


def runs_in(directories: Sequence[Path], key: RunKey, warn: Callable[[str], None]) -> list[EarlierRun]:
    """Return the runs with this key in output directories, the latest last, wherever they were made.

    Args:
        directories: output directories, or directories of them.
        key: kind and backend count; the site does not, because the user has chosen the runs.
        warn: takes one sentence if runs were skipped.

    Raises:
        InputError: if a directory holds no run.
    """
    found: list[tuple[float, EarlierRun]] = []
    ledgers = [ledger for directory in directories for ledger in _ledgers_in(directory)]
    num_skipped = 0
    for ledger in ledgers:
        try:
            run = _run_in(ledger, key)
        except HpcbalError:  # of another version, or damaged beyond use
            run = None
        if run is None:
            num_skipped += 1
        elif run[1] is not None:
            found.append((run[0], run[1]))
    if num_skipped:
        warn(
            f"--learn-from: skipped {num_skipped} of {count_text(len(ledgers), 'run')}: not done, not "
            "predicted, changed between starts, or of an older version of hpcbal"
        )
    return [run for _, run in sorted(found, key=lambda each: each[0])]


def _ledgers_in(directory: Path) -> Sequence[Path]:
    own = RunDirectory(directory).ledger
    found = [own] if own.is_file() else sorted(directory.glob(f"*/{own.name}"))
    if not found:
        raise InputError(
            f"--learn-from {directory}: got no output directory of a run, nor one that holds some"
        )
    return found


def _run_in(ledger: Path, key: RunKey) -> tuple[float, EarlierRun | None] | None:
    """Return the run in a ledger and its end in unix seconds; None if it tells nothing.

    The run is None if it has another key.
    """
    from hpcbal.telemetry.ledger.file import scan_ledger
    from hpcbal.telemetry.ledger.run import RunFinishedLine, RunStartedLine

    entries = scan_ledger(ledger).entries
    last = entries[-1] if entries else None
    if last is None or not isinstance(last.line, RunFinishedLine) or last.line.outcome != "done":
        return None
    start = next(entry.line for entry in reversed(entries) if isinstance(entry.line, RunStartedLine))
    run = None if last.line.whole is None else EarlierRun.of(last.line.whole, start.nodes)
    if run is None:
        return None
    return last.unix_s, run if (start.kind, start.computed_by) == (key.kind, key.backend) else None


def _last_lines(path: Path) -> Sequence[bytes]:
    """Return the whole lines at the end of a file, at most MOST_BYTES of them, without blank ones."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        start = file.seek(max(0, size - MOST_BYTES))
        lines = file.read(MOST_BYTES).split(b"\n")
    return [line for line in lines[1 if start else 0 :] if line.strip()]


def _run_of(plain: Mapping[str, Any]) -> EarlierRun | None:
    """Return the run in a line; None if it is not one."""
    if plain.get("format") != FORMAT:
        return None
    try:
        run = EarlierRun(**{field.name: plain[field.name] for field in fields(EarlierRun)})
    except KeyError:
        return None
    return run if run.is_valid() else None


SHARE = Fraction(9, 10)
"""Share of the runs that a band is to hold."""

LEAST_RUNS = 9
"""The fewest earlier runs from which a band with this share follows."""

MOST_RUNS = 100
"""Only so many latest runs count: older ones may be of another machine or another version."""

WIDE = 2.0
"""Without enough earlier runs, the band is from 1/WIDE to WIDE of the prediction."""

ASSUMED_STARTUP_S = 30.0
"""The start of the ranks takes so long where no earlier run has measured one."""


def conformal_range(residuals: Sequence[float], share: Fraction = SHARE) -> tuple[float, float] | None:
    """Return a range that holds the next residual with probability `share` or more.

    This holds whatever their distribution is, if the next one is exchangeable with these: each rank of the
    last one among n + 1 values is equally likely. Between the order statistics a and b there are b - a of
    n + 1 ranks, and ceil((n + 1) * share) are needed. If that leaves a rank below and a rank above, the range
    is between two residuals, and the larger tail is the lower one. Otherwise it is symmetric about 0, up to
    that order statistic of the absolute residuals.

    Args:
        residuals: of earlier runs, in any order.
        share: above 0, below 1.

    Returns: its lower and its upper end; None if there are too few residuals for any finite range.

    Source: split conformal prediction (Papadopoulos et al., 2002; Lei et al., J. Am. Stat. Assoc. 113, 2018).
    """
    count = len(residuals)
    needed = math.ceil((count + 1) * share)
    if needed > count:
        return None
    left_out = count + 1 - needed
    if left_out < 2:
        widest = sorted(map(abs, residuals))[needed - 1]
        return -widest, widest
    ordered = sorted(residuals)
    below = (left_out + 1) // 2
    return ordered[below - 1], ordered[below - 1 + needed]


@dataclass(frozen=True, slots=True)
class TimeBand:
    """How long a run takes, from the command to its end, over all its starts, without time in queues.

    Attributes:
        low_s, high_s: nine of ten runs are expected to end in between.
        median_s: half of the runs are expected to be shorter.
        startup_s: the part of it before the first job trains; median of earlier runs, or an assumption.
        num_runs: earlier runs that the band follows from; 0: it is an assumption.
        why: where it comes from; text for users.
    """

    low_s: float
    median_s: float
    high_s: float
    startup_s: float
    num_runs: int
    why: str

    @property
    def title(self) -> str:
        """Return the words for users in front of it: only earlier runs make it more than an assumption."""
        return "nine of ten runs" if self.num_runs else "assumed"

    @property
    def width(self) -> float:
        """Return the width of the band, as a share of its median."""
        return (self.high_s - self.low_s) / self.median_s if self.median_s > 0.0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "share": float(SHARE), "is_calibrated": self.num_runs > 0}


def time_band(predicted_s: float, runs: Sequence[EarlierRun], *, has_begun: bool = False) -> TimeBand:
    """Return the band of a run that is predicted to take `predicted_s` without its start.

    Args:
        predicted_s: seconds, above 0.
        runs: earlier runs of the same kind, the latest last.
        has_begun: whether the start is over, and `predicted_s` is what is left. The band then takes it that
            what is left deviates from its prediction as whole runs did.
    """
    latest = runs[-MOST_RUNS:]
    startup_s = usual_startup_s(latest)
    expected_s = predicted_s if has_begun else predicted_s + startup_s
    residuals = [math.log(run.active_s / (run.predicted_s + startup_s)) for run in latest]
    found = conformal_range(residuals)
    if found is None:
        why = f"half to twice the prediction, because there {_too_few(len(latest))}"
        return TimeBand(expected_s / WIDE, expected_s, expected_s * WIDE, startup_s, 0, why)
    low_s, high_s = (expected_s * math.exp(each) for each in found)
    median_s = expected_s * math.exp(statistics.median(residuals))
    why = f"from {count_text(len(latest), 'earlier run')} of this kind"
    return TimeBand(low_s, min(max(low_s, median_s), high_s), high_s, startup_s, len(latest), why)


def usual_startup_s(runs: Sequence[EarlierRun]) -> float:
    """Return the seconds from the command to the first work of the ranks: the median of the latest runs.

    Args:
        runs: earlier runs of the same kind, the latest last; without any it is an assumption.
    """
    latest = runs[-MOST_RUNS:]
    return statistics.median(run.startup_s for run in latest) if latest else ASSUMED_STARTUP_S


def _too_few(count: int) -> str:
    if not count:
        return "are no earlier runs of this kind"
    verb = "is" if count == 1 else "are"
    return f"{verb} only {count_text(count, 'earlier run')} of this kind, and a band needs {LEAST_RUNS}"
