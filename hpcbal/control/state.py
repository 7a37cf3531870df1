"""Everything the state machine remembers, as plain values, and the legal transitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from hpcbal.control.progress import DnnProgress, ResumeState
from hpcbal.control.states import TERMINAL, DnnState, Leaving, Phase
from hpcbal.events.ensemble import Event, RoundPlan, ScheduleChosen
from hpcbal.events.event_log import MachineError
from hpcbal.events.history import EpochRecord, Position
from hpcbal.events.members import DnnSpec
from hpcbal.policies.rates import RateTable
from hpcbal.policies.staying import without_left_out


class ControlError(MachineError):
    """The ensemble got an event that cannot happen in its state; `subject` is a DNN's name or empty."""

    machine: ClassVar[str] = "ensemble"


def subject_of(event: Event) -> str | None:
    """The DNN that an event is about; None if it is about the whole ensemble."""
    name: str | None = getattr(event, "dnn_id", None)
    return name


@dataclass(slots=True)
class Dnn:
    """One DNN: its state, and its history since the ensemble was first started."""

    spec: DnnSpec
    state: DnnState = DnnState.PENDING
    history: list[EpochRecord] = field(default_factory=list)
    position: Position | None = None  # where a suspended or interrupted DNN stopped
    cause: str = ""
    detail: str = ""

    @classmethod
    def restored(cls, spec: DnnSpec, progress: DnnProgress) -> Dnn:
        """Make the DNN as a resumed run starts with it."""
        if progress.state in TERMINAL:
            state = DnnState(progress.state)
        elif progress.position is not None:
            state = DnnState.SUSPENDED
        else:
            state = DnnState.WAITING if progress.epochs else DnnState.PENDING
        is_over = state in TERMINAL
        return cls(
            spec,
            state,
            list(progress.history),
            progress.position,
            progress.cause if is_over else "",
            progress.detail if is_over else "",
        )

    @property
    def epochs(self) -> int:
        return len(self.history)

    @property
    def is_live(self) -> bool:
        return self.state not in TERMINAL

    def progress(self) -> DnnProgress:
        """Return the progress of this DNN, from which a resumed run continues."""
        return DnnProgress(
            self.state, self.epochs, tuple(self.history), self.position, self.cause, self.detail
        )


@dataclass(slots=True)
class Group:
    """The slots that currently work for one DNN.

    Attributes:
        is_profiling: whether it belongs to a profiling wave, not to a round.
        is_measured: whether its rate has been reported, in a profiling wave or in this round.
        training_pass: the pass that it trains; None while it waits at the end of `reported_pass`.
        reported_pass: the last pass that it has finished.
        leaving: why it will leave; None if it stays.
        is_saved: whether the checkpoint for leaving is on disk.
        detail: the rule by which it has converged, or is paused or pruned.
        offered_slot: one of its slots that it could do without, judged at the end of `reported_pass`.
        builds: whether one of its ranks did not hold the network when it started; without rounds only.
    """

    dnn_id: str
    slots: tuple[int, ...]
    is_profiling: bool = False
    is_measured: bool = False
    training_pass: int | None = None
    reported_pass: int = -1
    leaving: Leaving | None = None
    is_saved: bool = False
    detail: str = ""
    offered_slot: int | None = None
    builds: bool = False

    @property
    def wanted_slots(self) -> tuple[int, ...]:
        """The slots with which it would continue."""
        return tuple(slot for slot in self.slots if slot != self.offered_slot)


@dataclass(slots=True)
class EnsembleState:
    """The state of the whole ensemble.

    Attributes:
        phase: what the ensemble is doing.
        dnns: DNNs by id, in the order of the config.
        groups: groups that hold slots now, by DNN.
        rates: rates that were known before the current profiling wave.
        fresh_rates: rates that the current wave has measured, by (DNN, number of slots).
        preprocessing_samples_per_s: rate of one preprocessor; None if not measured yet.
        plan: the round that runs, or that a suspension interrupted.
        interrupted: a round of the earlier run that will be continued.
        pass_index: the pass of the round; groups ahead of it wait for the others.
        next_pass: 1 + the largest pass ever started.
        next_round_index: index of the next round.
        kept: slots of the DNNs that were in training when the last round ended; a paradigm may leave them in
            place.
        left_out: slots per DNN that it goes on without, in the order in which they were left out.
        built: slots whose ranks have built and traced the network of a DNN since this start, by DNN,
            ascending. They may have dropped it to make room for others.
        choice: the last choice of a schedule; None if there was none.
        reserved: slots on which a DNN starts again as soon as its group has left; without rounds only.
        start_s: seconds that the newest group took from its start to its first step, by DNN and whether a
            rank of it had to build the network.
        save_s: seconds that the last checkpoint of a group that left took, by DNN.
        suspend_reason: why a clean stop was requested; empty if none was.
        outcome: the outcome in Finish; empty before.
        paused: live DNNs that are no candidates for rounds until results of others are known, with a reason.
        num_open: DNNs that searches may still propose.
        num_asked: those of them that are asked for now.
        to_stop: DNNs that the user has asked to stop, and that have not left yet.
        live: DNNs that are not done, pruned, stopped or failed, in the order of the config. Kept, because
            looking through thousands of DNNs at the end of every pass would take most of the time of a
            simulated run.
    """

    dnns: dict[str, Dnn]
    rates: RateTable
    phase: Phase = Phase.NEW
    groups: dict[str, Group] = field(default_factory=dict)
    fresh_rates: dict[tuple[str, int], float] = field(default_factory=dict)
    preprocessing_samples_per_s: float | None = None
    plan: RoundPlan | None = None
    interrupted: RoundPlan | None = None
    pass_index: int = 0
    next_pass: int = 0
    next_round_index: int = 0
    kept: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    left_out: dict[str, tuple[int, ...]] = field(default_factory=dict)
    built: dict[str, tuple[int, ...]] = field(default_factory=dict)
    choice: ScheduleChosen | None = None
    reserved: dict[str, tuple[int, ...]] = field(default_factory=dict)
    start_s: dict[tuple[str, bool], float] = field(default_factory=dict)
    save_s: dict[str, float] = field(default_factory=dict)
    suspend_reason: str = ""
    outcome: str = ""
    paused: dict[str, str] = field(default_factory=dict)
    num_open: int = 0
    num_asked: int = 0
    to_stop: set[str] = field(default_factory=set)
    live: dict[str, None] = field(init=False)

    def __post_init__(self) -> None:
        self.live = {dnn_id: None for dnn_id, dnn in self.dnns.items() if dnn.is_live}

    @classmethod
    def begin(cls, specs: Iterable[DnnSpec], rates: RateTable, resume: ResumeState) -> EnsembleState:
        """The state before Started."""
        dnns = {s.dnn_id: Dnn.restored(s, resume.dnns.get(s.dnn_id, DnnProgress())) for s in specs}
        return cls(
            dnns,
            rates,
            preprocessing_samples_per_s=resume.preprocessing_samples_per_s,
            interrupted=resume.interrupted,
            next_pass=_next_pass(resume),
            next_round_index=_next_round_index(resume),
            kept=dict(resume.kept),
            left_out=dict(resume.left_out),
            built=dict(resume.built),
            choice=resume.choice,
            num_open=resume.num_open or 0,
        )

    def must_build(self, dnn_id: str, slots: tuple[int, ...]) -> bool:
        """Whether a rank of these slots does not hold the network of a DNN."""
        return not set(slots) <= set(self.built.get(dnn_id, ()))

    def note_built(self, dnn_id: str, slots: tuple[int, ...]) -> None:
        """A group on these slots builds the network of the DNN, unless its ranks have it."""
        self.built[dnn_id] = tuple(sorted({*self.built.get(dnn_id, ()), *slots}))

    def live_ids(self) -> list[str]:
        """DNNs that are not done, pruned, stopped or failed, in the order of the config."""
        return list(self.live)

    def candidate_ids(self) -> list[str]:
        """Live DNNs that may train now, in the order of the config."""
        return [dnn_id for dnn_id in self.live if dnn_id not in self.paused]

    def staying_groups(self) -> list[Group]:
        """Groups that have not been asked to leave."""
        return [group for group in self.groups.values() if not group.leaving]

    def remaining(self, dnn_id: str, slots: tuple[int, ...]) -> tuple[int, ...]:
        """The slots in `slots` with which the DNN continues; never empty."""
        return without_left_out(slots, self.left_out.get(dnn_id, ()))

    def all_rates(self) -> RateTable:
        """All known rates, including those of the current wave."""
        if not self.fresh_rates:
            return self.rates
        measured = {dnn_id: dict(by_count) for dnn_id, by_count in self.rates.measured.items()}
        for (dnn_id, num_slots), rate in self.fresh_rates.items():
            measured.setdefault(dnn_id, {})[num_slots] = rate
        return RateTable(measured, self.rates.slots_per_node)


def _next_pass(resume: ResumeState) -> int:
    """1 + the largest pass that any part of the resume state has seen."""
    seen = [resume.next_pass - 1]
    for progress in resume.dnns.values():
        seen += [record.pass_index for record in progress.history[-1:]]
        if progress.position is not None and progress.position.offset > 0:
            seen.append(progress.position.pass_index)
    if resume.interrupted is not None:
        seen.append(resume.interrupted.first_pass)
    return max(seen) + 1


def _next_round_index(resume: ResumeState) -> int:
    last = -1 if resume.interrupted is None else resume.interrupted.index
    return max(resume.next_round_index, last + 1)
