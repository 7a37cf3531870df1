"""The line that ends an epoch, and what it says about ranks, balancing and partitioned data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from hpcbal.telemetry.ledger.line import Facts, Line


@dataclass(frozen=True, slots=True)
class RankFacts(Facts):
    """Where the ranks of a group spent the training steps of an epoch: one number per rank, in order.

    Attributes:
        wait_s: without a batch.
        compute_s: from having a batch until arriving at the collective.
        collective_s: in the collective, most of it waiting for later ranks.
        samples: valid samples that the rank computed on.
        worked_s: time that balancing counts: `compute_s`, and the rank's own preprocessing.

    Raises:
        ValueError: the lists differ in length, or are empty.
    """

    wait_s: tuple[float, ...]
    compute_s: tuple[float, ...]
    collective_s: tuple[float, ...]
    samples: tuple[int, ...]
    worked_s: tuple[float, ...]

    def __post_init__(self) -> None:
        rows = (self.wait_s, self.compute_s, self.collective_s, self.samples, self.worked_s)
        lengths = {len(row) for row in rows}
        if lengths == {0} or len(lengths) > 1:
            raise ValueError("its lists must have one number for each rank of the group")


@dataclass(frozen=True, slots=True)
class Straggler(Facts):
    """What held a group up in an epoch.

    Attributes:
        gpu: slot whose rank came last; null where summing gradients itself takes most of the time.
        why: `input` (waiting for data), `compute` or `collective`.
        late_s: how much later it came than the mean of the others; with `collective`, what the sums took.
    """

    gpu: int | None
    why: str
    late_s: float


@dataclass(frozen=True, slots=True)
class BalanceFacts(Facts):
    """How the steps of an uneven group were split.

    Attributes:
        shares: samples of each rank in a full step, at the epoch's end.
        changes: how often the shares changed in this epoch.
        decided_s: time spent on decisions.
        predictor: model that predicts speeds; null where none is used.
        fitted: whether a fitted model answers.
        fits: models fitted in this epoch.
        fit_s: time that these fits took.
        remove: rank of the group without which it would be faster; null if there is none.
    """

    shares: tuple[int, ...]
    changes: int = 0
    decided_s: float = 0.0
    predictor: str | None = None
    fitted: bool | None = None
    fits: int | None = None
    fit_s: float | None = None
    remove: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionFacts(Facts):
    """Where partitioned data lies; lists have one number per rank of the group.

    Attributes:
        sizes: samples of each part.
        traversals: how often each part was gone through.
        gap: largest difference between traversals.
        migrations: migrations so far in this round.
        moved: samples that they moved.
    """

    sizes: tuple[int, ...]
    traversals: tuple[float, ...]
    gap: float
    migrations: int
    moved: int


@dataclass(frozen=True, slots=True)
class EpochFacts(Facts):
    """What the group's master measured; no decision depends on it.

    After a resume inside a pass, it counts from the resume on.

    Attributes:
        wait_s: time without a batch.
        num_steps: steps, of training and validation.
        num_samples: valid samples in them, over all ranks.
        num_trained: those of them that were trained on.
        trained_s: time in training steps, without waiting for batches.
        ranks: the group's ranks one by one; null for a group of one.
        balance: null where shares are even.
        partition: null where data is not partitioned.
    """

    wait_s: float
    num_steps: int
    num_samples: int
    num_trained: int
    trained_s: float
    ranks: RankFacts | None = None
    balance: BalanceFacts | None = None
    partition: PartitionFacts | None = None


@dataclass(frozen=True, slots=True)
class EpochDoneLine(Line):
    """Written when a group reports the end of a pass, validation included.

    Attributes:
        dnn: whose epoch.
        pass_index: pass of the shared stream.
        seconds: wall time of the epoch.
        busy_s: the part of it that was not spent waiting for data.
        metrics: `loss`, `accuracy`, `val_loss`, `val_accuracy`; null for a value that is no finite number.
        facts: further measurements.
        balancing_would_save: share of the training steps, 0 to 1, that balancing would save; null where it
            is in use, and for a group of one.
        straggler: what held the group up; null if nothing did.
    """

    event: ClassVar[str] = "epoch-done"
    dnn: str
    pass_index: int
    seconds: float
    busy_s: float
    metrics: Mapping[str, float | None]
    facts: EpochFacts
    balancing_would_save: float | None = None
    straggler: Straggler | None = None
