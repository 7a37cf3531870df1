"""The master's own part: events that only it can cause, and instructions of the machine to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hpcbal.events.history import EpochRecord
from hpcbal.paramserver.master.messages import Order, Report, Sums, What

Outcome = Literal["done", "failed", "suspended"]
"""How a start of a job ends."""

# ---- events ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExecutorsReady:
    """The first event: all executors listen."""


@dataclass(frozen=True, slots=True)
class Heard:
    """An executor has reported something."""

    executor: int
    report: Report


@dataclass(frozen=True, slots=True)
class MetricsComputed:
    """The answer to `ComputeMetrics`.

    Attributes:
        epoch: number of completed epochs, >= 1.
        metrics: the app's metrics; the first is monitored unless the stop rule names another.
        seconds: wall time since the objective before, or since the start.
    """

    epoch: int
    metrics: Mapping[str, float]
    seconds: float


@dataclass(frozen=True, slots=True)
class SaveRequested:
    """A checkpoint is due."""


@dataclass(frozen=True, slots=True)
class ManifestWritten:
    """The answer to `WriteManifest`: the checkpoint is complete."""

    number: int


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Stop cleanly: save, and end so that the same command continues.

    Attributes:
        reason: text for users.
        gives_up_objective: whether the next start computes an objective that is due or under way. False: the
            stop waits for it, but in `async` for none that is only due.
    """

    reason: str
    gives_up_objective: bool = True


@dataclass(frozen=True, slots=True)
class EndRequested:
    """End without saving, once no executor waits for another one.

    Attributes:
        outcome: of the `End`.
        detail: text for users.
    """

    outcome: Outcome
    detail: str


@dataclass(frozen=True, slots=True)
class BlockMove:
    """Blocks that move together.

    Attributes:
        what: sort of blocks.
        blocks: their numbers, at least one.
        source: rank that owns them.
        destination: rank that gets them, another one.
        after: numbers of moves of the same reconfiguration that must be over first.
    """

    what: What
    blocks: tuple[int, ...]
    source: int
    destination: int
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Reconfigure:
    """Give blocks other owners while training goes on.

    Attributes:
        moves: numbered from 0; those that wait for none run side by side.
        why: text for users.
        predicted_gain: predicted saving, as a share of the epoch time; None if it was not made for a gain.
    """

    moves: tuple[BlockMove, ...]
    why: str
    predicted_gain: float | None = None


Event = (
    ExecutorsReady
    | Heard
    | MetricsComputed
    | SaveRequested
    | ManifestWritten
    | StopRequested
    | EndRequested
    | Reconfigure
)

# ---- instructions ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Send an order to some executors."""

    order: Order
    to: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ComputeMetrics:
    """Let the app turn the sums into metrics; answered by `MetricsComputed`.

    Attributes:
        epoch: number of completed epochs.
        sums: over all data blocks in order, then all parameter blocks in order.
    """

    epoch: int
    sums: Sums


@dataclass(frozen=True, slots=True)
class EpochEnded:
    """Every data block has done another epoch.

    Attributes:
        epoch: number of completed epochs.
        record: its objective; None if none was due.
    """

    epoch: int
    record: EpochRecord | None


@dataclass(frozen=True, slots=True)
class WriteManifest:
    """All executors have written checkpoint `number`; answered by `ManifestWritten`.

    Attributes:
        number: counts up from 1.
        epoch: number of completed epochs.
        step: number of completed steps.
        history: one record for each objective.
        data_owner: rank whose file holds each data block.
        parameter_owner: rank whose file holds each parameter block.
    """

    number: int
    epoch: int
    step: int
    history: tuple[EpochRecord, ...]
    data_owner: tuple[int, ...]
    parameter_owner: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reconfigured:
    """The last move of a reconfiguration is over, or the start ends amid it.

    Attributes:
        request: with the blocks that have moved.
    """

    request: Reconfigure


@dataclass(frozen=True, slots=True)
class End:
    """The start is over; the machine takes no more events that matter.

    Attributes:
        outcome: `done`; `failed`; `suspended` if the same command continues.
        cause: kind of failure, one word; empty if it did not fail.
        detail: the stop rule that applied, the reason of the stop, or what failed; text for users.
        exit_code: of the start; None: that of the outcome.
    """

    outcome: Outcome
    cause: str
    detail: str
    exit_code: int | None = None


Instruction = Send | ComputeMetrics | EpochEnded | WriteManifest | Reconfigured | End
