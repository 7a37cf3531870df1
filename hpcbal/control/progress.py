"""Progress of DNNs when a run starts or resumes, and the rules by which their training is done."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hpcbal.cluster.layout import Cluster
from hpcbal.control.states import DnnState
from hpcbal.errors import InputError
from hpcbal.events.ensemble import Delta, RoundPlan, Schedule, ScheduleChosen
from hpcbal.events.history import EpochRecord, Position
from hpcbal.events.members import StopRule
from hpcbal.policies.pruning.rules import PruneRule


@dataclass(frozen=True, slots=True)
class StopDecision:
    """Why a DNN is done.

    Attributes:
        reason: 'target', 'patience' or 'max_epochs', the first of these that holds.
        epoch: epochs completed when it stopped, >= 1.
        detail: the rule with its numbers, for people.
        best_value: best value of the monitored metric; None if it was never a number.
        best_epoch: the epoch (from 1) that reached it; 0 if none did.
    """

    reason: str
    epoch: int
    detail: str
    best_value: float | None
    best_epoch: int


@dataclass(frozen=True, slots=True)
class Best:
    """Best value of the monitored metric, its epoch, and the epochs since the last improvement."""

    value: float | None
    epoch: int
    num_stale_epochs: int


def check_monitored(rule: StopRule, record: EpochRecord) -> None:
    """Raise InputError if an epoch lacks the monitored metric; the message lists those it has."""
    if rule.monitor not in record.metrics:
        known = ", ".join(sorted(record.metrics)) or "none"
        raise InputError(
            f"stop.monitor: got {rule.monitor!r}, but epoch {record.epoch} has the metrics: {known}"
        )


def best(rule: StopRule, history: Sequence[EpochRecord]) -> Best:
    """Follow the monitored metric through `history`.

    The best value is the best one seen. Staleness counts from the last epoch that beat the reference by more
    than `min_delta`. The reference is the value at the previous improvement, so many tiny gains that add up
    to `min_delta` count as one improvement. A NaN never improves anything.

    Raises:
        InputError: if an epoch lacks the monitored metric; the message lists those it has.
    """
    sign = 1.0 if rule.mode == "max" else -1.0
    top, top_epoch, reference, reference_epoch = -math.inf, 0, -math.inf, 0
    for record in history:
        check_monitored(rule, record)
        value = sign * record.metrics[rule.monitor]
        if math.isnan(value):
            continue
        if value > top:
            top, top_epoch = value, record.epoch
        if reference_epoch == 0 or value > reference + rule.min_delta:
            reference, reference_epoch = value, record.epoch
    last_epoch = history[-1].epoch if history else 0
    return Best(sign * top if top_epoch else None, top_epoch, last_epoch - reference_epoch)


def evaluate(rule: StopRule, history: Sequence[EpochRecord]) -> StopDecision | None:
    """Decide whether a DNN with this history is done, and by which rule.

    Args:
        rule: the DNN's stop rule.
        history: its completed epochs in order; `epoch` counts from 1.

    Returns:
        The decision, or None if the DNN must continue. If several rules hold, the first in the order target,
        patience, max_epochs is named. The answer depends only on the history, so it is the same after a
        resume.

    Raises:
        InputError: if an epoch lacks the monitored metric.

    Source: [FLEET] Sec. 4.3.2 checks convergence at the end of each epoch and leaves the criterion open;
        patience and min_delta follow the common early-stopping rule.
    """
    if not history:
        return None
    epoch = history[-1].epoch
    if rule.target is None and rule.patience is None and epoch < rule.max_epochs:
        check_monitored(rule, history[-1])
        return None  # at once: a simulated run asks at the end of every pass
    found = best(rule, history)
    reason, detail = "", ""
    if rule.target is not None and found.value is not None and _reached(rule, found.value):
        sign = ">=" if rule.mode == "max" else "<="
        reason, detail = "target", f"{rule.monitor} {found.value:.6g} {sign} target {rule.target:.6g}"
    elif rule.patience is not None and found.num_stale_epochs >= rule.patience:
        epochs = "epoch" if found.num_stale_epochs == 1 else "epochs"
        detail = f"{rule.monitor} did not improve for {found.num_stale_epochs} {epochs}"
        if found.value is not None:
            detail += f" (best {found.value:.6g} in epoch {found.epoch})"
        reason = "patience"
    elif epoch >= rule.max_epochs:
        reason, detail = "max_epochs", f"{epoch} of at most {rule.max_epochs} epochs"
    return StopDecision(reason, epoch, detail, found.value, found.epoch) if reason else None


def _reached(rule: StopRule, value: float) -> bool:
    assert rule.target is not None
    return value >= rule.target if rule.mode == "max" else value <= rule.target


@dataclass(frozen=True, slots=True)
class ScheduleSettings:
    """How the ensemble is scheduled; the same for the whole run.

    Attributes:
        num_positions: samples of one pass, training and validation, >= 1; a position with this offset is the
            end of its pass.
        delta: how close rates in a flotilla must be ([FLEET] Eq. 3); None: to be chosen.
        alpha: a round ends when fewer than this share of its slots stay busy, 0..1 ([FLEET] Sec. 4.3.2);
            None: to be chosen, see `candidates`.
        max_slots_per_dnn: most slots of one DNN; None: all.
        profile: whether missing rates are measured; if not, all must be known.
        max_profile_slots: most slots of a profiling run; None: M_t of [FLEET] App. B.3.
        max_preprocessors: number of preprocessor ranks, >= 1.
        checkpoint_every_pass: whether NextPass requests a checkpoint of every DNN that continues.
        max_events: bound of the event log, >= 2.
        paradigm: one of `paradigms.PARADIGM_NAMES`, or `schedules.AUTO`: to be chosen.
        seed: seed of everything that a paradigm draws at random, >= 0.
        profile_only: whether the run ends when all rates are known.
        regroup: whether a DNN may continue without a slot if its group trains faster without it.
        rough_placement: whether flotillas are placed without a search, which only predictions ask for; see
            `assign_slots_roughly`.
        prune: the rule by which DNNs stop early, compared with each other; None: none does.
        max_proposals: DNNs that searches may still propose when the run starts, >= 0.
    """

    num_positions: int
    delta: Delta | None = field(default_factory=lambda: Delta(absolute=20.0))
    alpha: float | None = 0.8
    max_slots_per_dnn: int | None = None
    profile: bool = True
    max_profile_slots: int | None = None
    max_preprocessors: int = 1
    checkpoint_every_pass: bool = True
    max_events: int = 20_000
    paradigm: str = "global"
    seed: int = 0
    profile_only: bool = False
    regroup: bool = True
    rough_placement: bool = False
    prune: PruneRule | None = None
    max_proposals: int = 0

    def __post_init__(self) -> None:
        if self.alpha is not None and not (math.isfinite(self.alpha) and 0.0 <= self.alpha <= 1.0):
            raise InputError(f"schedule.alpha: got {self.alpha}, allowed: 0 to 1")
        bounds = (
            ("num_positions", self.num_positions, 1),
            ("max_slots_per_dnn", self.max_slots_per_dnn, 1),
            ("max_profile_slots", self.max_profile_slots, 1),
            ("max_preprocessors", self.max_preprocessors, 1),
            ("max_events", self.max_events, 2),
            ("seed", self.seed, 0),
        )
        for name, value, least in bounds:
            if value is not None and value < least:
                raise InputError(f"{name}: got {value}, allowed: an integer >= {least}")

    def under(self, schedule: Schedule) -> ScheduleSettings:
        """These settings with a chosen schedule: nothing is left to be chosen."""
        return replace(self, paradigm=schedule.paradigm, delta=schedule.delta, alpha=schedule.alpha)

    def for_profiling(self) -> ScheduleSettings:
        """These settings for a run that only measures rates, whatever schedule they are for.

        Only "global" makes use of rates on several slots, so only with it are all of them measured.
        """
        return replace(self, profile=True, profile_only=True, paradigm="global")


@dataclass(frozen=True, slots=True)
class DnnProgress:
    """The progress of one DNN, from its checkpoint and the ledger.

    Attributes:
        state: 'done', 'pruned' and 'failed' are kept on resume; any other is derived from the other fields.
        epochs: completed epochs, equal to len(history).
        history: one record per completed epoch.
        position: position of the checkpoint in the stream; None between rounds.
        cause: why the DNN failed: oom, nan, error, checkpoint, data; empty if it did not.
        detail: more about `cause`, or the rule that ended the training.
    """

    state: DnnState = DnnState.PENDING
    epochs: int = 0
    history: tuple[EpochRecord, ...] = ()
    position: Position | None = None
    cause: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ResumeState:
    """Everything a run must know about the earlier run to continue as if nothing had happened.

    Attributes:
        dnns: progress by DNN; a missing DNN starts from the beginning.
        next_pass: 1 + the largest pass of the shared stream ever started; 0 if none was.
        next_round_index: index of the next round.
        interrupted: the round that was running when the earlier run stopped; None between rounds.
        cluster: the allocation that `interrupted` and `left_out` refer to; None: like the present one.
        preprocessing_samples_per_s: rate of one preprocessor; None if not measured.
        kept: slots of the DNNs that continue in place in the next round; see `EnsembleState`.
        left_out: slots per DNN that it goes on without; see `hpcbal.control.round_phase`.
        built: slots whose ranks hold the network of a DNN; empty for new processes. See `EnsembleState`.
        choice: the last choice of a schedule; None if the schedule was given.
        num_open: DNNs that searches may still propose; None: as the settings say.
    """

    dnns: Mapping[str, DnnProgress] = field(default_factory=dict)
    next_pass: int = 0
    next_round_index: int = 0
    interrupted: RoundPlan | None = None
    cluster: Cluster | None = None
    preprocessing_samples_per_s: float | None = None
    kept: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    left_out: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    built: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    choice: ScheduleChosen | None = None
    num_open: int | None = None
