"""Measurements of a group in an epoch of training; of these only `evidence` decides anything."""

from __future__ import annotations

from dataclasses import dataclass

from hpcbal.events.line import Facts, Number


@dataclass(frozen=True, slots=True)
class RankFacts(Facts):
    """How the ranks of a group spent the training steps of an epoch: one number per rank, in rank order.

    Attributes:
        wait_s: time waiting for batches.
        compute_s: time from having a batch until arriving at the collective.
        collective_s: time in the collective, mostly waiting for slower ranks.
        samples: number of valid samples that the rank computed on.
        worked_s: time that balancing equalises: `compute_s` and the rank's own preprocessing.
        work: work of these samples, in samples of mean size; null if samples do not differ in size.
        waited_s: the part of `collective_s` spent waiting for slower ranks, beyond the shortest
            all-reduce of the epoch; null likewise.
        slowest_work: sum over the steps of the work that a rank of mean weight does while the slowest rank
            does its own; null likewise. A rank's weight is its planned part of a step's work.

    Raises:
        ValueError: if the lists differ in length or are empty.
    """

    wait_s: tuple[Number, ...]
    compute_s: tuple[Number, ...]
    collective_s: tuple[Number, ...]
    samples: tuple[int, ...]
    worked_s: tuple[Number, ...]
    work: tuple[Number, ...] | None = None
    waited_s: tuple[Number, ...] | None = None
    slowest_work: Number | None = None

    def __post_init__(self) -> None:
        rows = (self.wait_s, self.compute_s, self.collective_s, self.samples, self.worked_s)
        lengths = {len(row) for row in (*rows, self.work, self.waited_s) if row is not None}
        if lengths == {0} or len(lengths) > 1:
            raise ValueError("its lists must have one number for each rank of the group")


@dataclass(frozen=True, slots=True)
class Straggler(Facts):
    """The slot, or the all-reduce, for which a group waited in an epoch.

    Attributes:
        slot: slot whose rank came last; null if the all-reduce itself takes most of the time.
        why: `input` (waiting for data), `compute` or `collective`.
        late_s: how much later it came than the mean of the others; with `collective`, time of the all-reduce.
    """

    slot: int | None
    why: str
    late_s: Number


@dataclass(frozen=True, slots=True)
class BalanceFacts(Facts):
    """How the steps of an uneven group were split.

    Attributes:
        shares: samples of each rank in a full step, at the epoch's end.
        changes: number of changes of the shares in this epoch.
        decided_s: time spent on decisions.
        predictor: model that predicts speeds; null if none is used.
        fitted: whether the model has been fitted.
        fits: number of fits in this epoch.
        fit_s: time that these fits took.
        remove: group rank without which the group would be faster; null if there is none.
    """

    shares: tuple[int, ...]
    changes: int = 0
    decided_s: Number = 0.0
    predictor: str | None = None
    fitted: bool | None = None
    fits: int | None = None
    fit_s: float | None = None
    remove: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionFacts(Facts):
    """The state of partitioned data; lists have one number per rank of the group.

    Attributes:
        sizes: number of samples in each part.
        traversals: number of traversals of each part.
        gap: largest difference between traversals.
        migrations: number of migrations so far in this round.
        moved: number of samples that they moved.
    """

    sizes: tuple[int, ...]
    traversals: tuple[Number, ...]
    gap: Number
    migrations: int
    moved: int


@dataclass(frozen=True, slots=True)
class EpochFacts(Facts):
    """Measurements of the group's master; no decision depends on them but on `evidence`.

    After a resume inside a pass, they count from the resume.

    Attributes:
        wait_s: time waiting for batches.
        num_steps: number of training and validation steps.
        num_samples: number of valid samples in these steps, over all ranks.
        num_trained: number of these samples that were in training steps.
        trained_s: time in training steps, without waiting for batches.
        ranks: measurements of each rank; null for a group of one rank.
        balance: how the steps were split; null if shares are even.
        partition: state of partitioned data; null if data is not partitioned.
        learning_rate: of the last training step; null if it does not change.
        augment_s: time spent on `augment`, mostly while the network computed; null without it.
        device_busy: share of the time, 0 to 1, in which the GPU of the group's master ran kernels; null where
            no library tells.
        evidence: predictions of the DNN for a few validation items, from which committees are chosen with
            `prune.rule: committee` or `search.for: committee`, as text: `p` and minus the logarithms of the
            right answers' probabilities in float16, or `e` and the errors of values in float32, in base64;
            null without these.
    """

    wait_s: Number
    num_steps: int
    num_samples: int
    num_trained: int
    trained_s: Number
    ranks: RankFacts | None = None
    balance: BalanceFacts | None = None
    partition: PartitionFacts | None = None
    learning_rate: Number | None = None
    augment_s: Number | None = None
    device_busy: float | None = None
    evidence: str | None = None

    @property
    def num_ranks(self) -> int | None:
        """Return the number of ranks of the group; None if nothing was measured."""
        if self.ranks is not None:
            return len(self.ranks.samples)
        return 1 if self.num_steps else None


NOTHING_MEASURED = EpochFacts(0.0, 0, 0, 0, 0.0)
