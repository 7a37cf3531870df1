"""The messages between the master of a parameter-server job and its executors; no arrays.

Steps are numbered over the whole job: step c of a job with R steps per epoch belongs to epoch c // R. With
`async` there are no steps; the number is the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hpcbal.comm.channel import Message

What = Literal["data", "parameters"]
"""The two sorts of blocks."""

Sums = Mapping[str, float]
"""Terms of an objective by name; they add up over blocks."""

# ---- master -> executors ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assign(Message):
    """To all, first: make or load the blocks that are yours; answered by `Ready`.

    Attributes:
        data_owner: rank that owns each data block.
        parameter_owner: rank that owns each parameter block.
        saved: number of the checkpoint to load; None: the job starts.
    """

    data_owner: tuple[int, ...]
    parameter_owner: tuple[int, ...]
    saved: int | None


@dataclass(frozen=True, slots=True)
class Initialise(Message):
    """To all, once all are ready: push the app's initial updates of own data; answered by `Initialised`."""


@dataclass(frozen=True, slots=True)
class MayStart(Message):
    """To all: turns of steps below `limit` may start."""

    limit: int


@dataclass(frozen=True, slots=True)
class Evaluate(Message):
    """To all: compute the objective of every own block after `epoch` epochs, also of late ones.

    Answered by `Evaluated`, as often as needed.
    """

    epoch: int


@dataclass(frozen=True, slots=True)
class MoveBlocks(Message):
    """To their owner: hand blocks over to `destination`; answered by `BlocksMoved` as they arrive."""

    what: What
    blocks: tuple[int, ...]
    destination: int


@dataclass(frozen=True, slots=True)
class OwnerChanged(Message):
    """To all: parameter blocks have arrived at `owner`."""

    blocks: tuple[int, ...]
    owner: int


@dataclass(frozen=True, slots=True)
class Pause(Message):
    """To all: finish the turn, wait until its updates are applied, start none; answered by `Paused`.

    Who still computes terms of an objective gives them up: they are not awaited any more.
    """


@dataclass(frozen=True, slots=True)
class Save(Message):
    """To all, while they are paused: write the own blocks as checkpoint `number`; answered by `Saved`."""

    number: int


@dataclass(frozen=True, slots=True)
class Continue(Message):
    """To all: the pause is over."""


@dataclass(frozen=True, slots=True)
class EndStart(Message):
    """To all: the start is over; leave with this exit code."""

    exit_code: int


Order = (
    Assign | Initialise | MayStart | Evaluate | MoveBlocks | OwnerChanged | Pause | Save | Continue | EndStart
)

# ---- executors -> master ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready(Message):
    """All own blocks are there.

    Attributes:
        cursors: the step at which each own data block goes on.
    """

    cursors: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Initialised(Message):
    """The initial updates are applied."""


@dataclass(frozen=True, slots=True)
class TurnDone(Message):
    """A turn is over, and its updates are applied.

    Attributes:
        step: the step of the turn.
        data_blocks: blocks that have done this step now; with `async`, that have done the epoch.
        samples: number of samples of the turn.
        compute_s: time in the app's code.
        pull_s: time waiting for parameters.
        push_s: time from sending the updates until they were applied.
        num_bytes: bytes pulled and pushed, without acknowledgements.
    """

    step: int
    data_blocks: tuple[int, ...]
    samples: int
    compute_s: float
    pull_s: float
    push_s: float
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Evaluated(Message):
    """Terms of the objective after `epoch` epochs, of each block that this executor owned.

    Attributes:
        data: terms by data block.
        parameters: terms by parameter block.
        seconds: how long it took.
    """

    epoch: int
    data: Mapping[int, Sums]
    parameters: Mapping[int, Sums]
    seconds: float


@dataclass(frozen=True, slots=True)
class BlocksMoved(Message):
    """From the old owner: the blocks have arrived at `destination`, which has acknowledged them."""

    what: What
    blocks: tuple[int, ...]
    destination: int


@dataclass(frozen=True, slots=True)
class ServerReport(Message):
    """The work of an owner of parameters since its last report; the machine does not need it."""

    bytes_in: int
    bytes_out: int
    service_s: float
    requests: int


@dataclass(frozen=True, slots=True)
class Paused(Message):
    """No turn is under way, and all updates are applied.

    Attributes:
        cursors: as in `Ready`.
    """

    cursors: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Saved(Message):
    """The own blocks are on disk."""

    number: int


@dataclass(frozen=True, slots=True)
class Failed(Message):
    """The app, its data or this executor has failed, so the job has.

    Attributes:
        cause: kind of failure, one word.
        detail: text for users.
        exit_code: of the start, where the job has not failed: the same command continues once the cause is
            mended, such as a full disk. None: the job has failed.
    """

    cause: str
    detail: str
    exit_code: int | None = None


Report = Ready | Initialised | TurnDone | Evaluated | BlocksMoved | ServerReport | Paused | Saved | Failed
