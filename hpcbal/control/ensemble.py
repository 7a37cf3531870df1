"""The ensemble's state machine: events in, instructions out, no IO, no clock, no randomness."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from hpcbal.cluster.layout import Cluster
from hpcbal.control import rounds, snapshot
from hpcbal.control.elastic import fill_slots, first_order, ladders_of
from hpcbal.control.joining import on_dnn_added, on_search_ended
from hpcbal.control.paradigms import AUTO, INDEPENDENT, PARADIGM_NAMES, PARADIGMS, needs_rates
from hpcbal.control.profiling import measures_in_rounds
from hpcbal.control.progress import ResumeState, ScheduleSettings, evaluate
from hpcbal.control.pruning import without
from hpcbal.control.round_phase import (
    decide,
    on_epoch_done,
    on_rate_measured,
    on_schedule_chosen,
    profile_or_train,
)
from hpcbal.control.schedules import basis_of, candidates
from hpcbal.control.state import ControlError, Dnn, EnsembleState, Group, subject_of
from hpcbal.control.states import (
    STATE_WHEN_LEFT,
    STATE_WHEN_SAVED,
    TERMINAL,
    TRANSITIONS,
    DnnState,
    Leaving,
    Phase,
)
from hpcbal.control.stopping import on_stop_asked, stop_waiting
from hpcbal.errors import ClusterError
from hpcbal.events.ensemble import (
    CheckpointWritten,
    Delta,
    DnnFailed,
    EpochDone,
    Event,
    Finish,
    GroupLeft,
    IdleSlots,
    Instruction,
    LeaveRound,
    PreprocessingMeasured,
    RateMeasured,
    RoundPlan,
    ScheduleChosen,
    Started,
    StopStream,
    SuspendGroups,
    SuspendRequested,
)
from hpcbal.events.event_log import EventLog
from hpcbal.events.members import DnnAdded, DnnSpec, SearchEnded, StopAsked
from hpcbal.policies.elastic import Ladder
from hpcbal.policies.flotilla import FlotillaPlanner
from hpcbal.policies.rates import RateTable


class Ensemble:
    """Trains an ensemble to its end: profile, then round after round ([FLEET] Alg. 1).

    The caller passes every event to `handle` and carries out the instructions that it returns, in order. The
    MPI runtime does so with messages, the simulator in virtual time. A round is pass-synchronous: every group
    trains pass p, reports EpochDone and waits; when all have reported, the state machine decides for all.

    Args:
        specs: the DNNs, in the order of the config.
        cluster: the allocation; at least one slot.
        settings: how to schedule.
        rates: known training rates; missing ones are profiled.
        resume: the progress of an earlier run; None: a fresh start.

    Attributes:
        specs: as given, and those of DNNs that have joined since.
        cluster: as given.
        given: the settings as given; parts of the schedule may be left open.
        candidates: the schedules that the settings leave open.
        basis: see `ScheduleChosen`.
        origin_specs, origin_rates, origin_resume: where the event log starts.
        batch_sizes: samples per step, by DNN.
        signed_values: the monitored metric of each epoch, more is better, as far as pruning has read it.
        log: the bounded event log.
        state: everything that changes.
        has_resumed: whether a DNN was stopped inside a pass by an earlier start.
        forgotten: live DNNs that may use slots again that they had dropped, because the hosts have changed.
        too_wide: live DNNs that may have fewer slots now than in the interrupted round, which therefore ends.

    Raises:
        ClusterError: if the allocation has no slot.
        ControlError: if two DNNs have the same name, or the resume state contradicts itself.
    """

    def __init__(
        self,
        specs: Iterable[DnnSpec],
        cluster: Cluster,
        settings: ScheduleSettings,
        rates: RateTable,
        resume: ResumeState | None = None,
    ) -> None:
        resume = resume or ResumeState()
        self.specs = self.origin_specs = tuple(specs)
        self.cluster = cluster
        self.given = settings
        self.origin_rates = rates
        self.origin_resume = resume
        self.batch_sizes = {spec.dnn_id: spec.batch_size for spec in self.specs}
        self.signed_values: dict[str, list[float]] = {}
        self.log = EventLog(settings.max_events, subject_of)
        self._flotillas: tuple[RateTable, Delta, FlotillaPlanner] | None = None
        self._settings: tuple[ScheduleChosen | None, ScheduleSettings] | None = None
        self._waiting: deque[Dnn] | None = None
        self._ladders: tuple[RateTable, Mapping[str, Ladder]] | None = None
        self.node_of_slot = cluster.node_of_slots()
        self._check_input()
        self.candidates = candidates(settings)
        self.state = EnsembleState.begin(self.specs, rates, resume)
        if resume.num_open is None:
            self.state.num_open = settings.max_proposals
        self.basis = basis_of(self.specs, self.candidates, settings.max_slots_per_dnn, cluster)
        if resume.choice is not None and not self._still_holds(resume.choice):
            self.state.choice = None
        if not rounds.fits(self.state.interrupted, resume.cluster, cluster):
            self.state.interrupted = None
        if not rounds.is_alike(resume.cluster, cluster):
            self.state.kept, self.state.built = {}, {}
        for dnn_id in self.state.left_out.keys() - self.state.dnns.keys():
            del self.state.left_out[dnn_id]
        self.has_resumed = any(dnn.position is not None for dnn in self.state.dnns.values())
        self.forgotten: tuple[str, ...] = ()
        if not rounds.is_same(resume.cluster, cluster):
            self._forget_left_out()
        self.too_wide = self._above_limit(rounds.slots_of(self.state.interrupted))
        if self.too_wide:
            self.state.interrupted = None
        if self._above_limit(self.state.kept):
            self.state.kept = {}

    def handle(self, event: Event) -> list[Instruction]:
        """Handle one event; the only way to change the state.

        Reports about a DNN that has already failed are ignored, because several ranks of a group may report
        one failure, and other reports may be under way. A failure of a DNN that is done or pruned,
        and saved, is also ignored.

        Returns: what to do now, in this order; empty if there is nothing to do but wait.
        Raises:
            ControlError: if the event cannot happen in this state; only the log has changed then.
            InputError: if a stop rule names a metric that the DNN does not report, or a rate is not known.
        """
        self.log.append(event)
        handler = _HANDLERS.get(type(event))
        if handler is None:
            known = ", ".join(sorted(kind.__name__ for kind in _HANDLERS))
            raise self.error(f"got an event of type {type(event).__name__}, allowed: {known}")
        if self.finished and not isinstance(event, SuspendRequested | ScheduleChosen):
            raise self.error(f"got {event!r} after Finish({self.outcome!r}), allowed: nothing more")
        if self.state.phase is Phase.NEW and not isinstance(event, Started | SuspendRequested | DnnFailed):
            raise self.error(f"got {event!r} before Started, allowed before it: DnnFailed, SuspendRequested")
        return handler(self, event)

    @property
    def finished(self) -> bool:
        """Whether Finish was returned."""
        return self.state.phase is Phase.FINISHED

    @property
    def outcome(self) -> str:
        """The outcome in Finish: 'done', 'failed-dnns', 'suspended' or 'profiled'; empty before."""
        return self.state.outcome

    @property
    def rates(self) -> RateTable:
        """All rates known so far, to be saved for the next run."""
        return self.state.all_rates()

    @property
    def plan(self) -> RoundPlan | None:
        """The round that runs, or that a suspension interrupted."""
        return self.state.plan

    @property
    def events(self) -> tuple[Event, ...]:
        """The bounded event log; `replay(*ensemble.origin, ensemble.events)` leads to the same state."""
        return self.log.events

    @property
    def origin(self) -> tuple[tuple[DnnSpec, ...], Cluster, ScheduleSettings, RateTable, ResumeState]:
        """Where the event log starts."""
        return (self.origin_specs, self.cluster, self.given, self.origin_rates, self.origin_resume)

    def idle_slots(self) -> IdleSlots | None:
        """Slots that are idle in the round that runs although DNNs wait, and why; None if there are none."""
        return snapshot.idle_slots(self)

    def snapshot(self) -> dict[str, Any]:
        """The state as plain JSON values, for status.json; see `snapshot.render`."""
        return snapshot.render(self.state)

    def check_invariants(self) -> None:
        """Raise ControlError if the state contradicts itself."""
        for problem in snapshot.problems(self.state, self.cluster):
            raise self.error(f"internal error: {problem}")

    def _still_holds(self, choice: ScheduleChosen) -> bool:
        """Whether a choice of an earlier start was made for what there is now."""
        if not self.is_auto or choice.schedule not in self.candidates:
            return False
        return choice.basis == self.basis

    @property
    def is_auto(self) -> bool:
        """Whether schedules are chosen."""
        return len(self.candidates) > 1

    @property
    def settings(self) -> ScheduleSettings:
        """The settings with the schedule of now; before the first choice, with the first candidate."""
        choice = self.state.choice
        if self._settings is None or self._settings[0] is not choice:
            schedule = self.candidates[0] if choice is None else choice.schedule
            self._settings = choice, self.given.under(schedule)
        return self._settings[1]

    @property
    def has_rounds(self) -> bool:
        """Whether DNNs train in rounds, not each at its own pace."""
        return self.settings.paradigm in PARADIGMS

    @property
    def is_independent(self) -> bool:
        """Whether each DNN trains on one slot to its end, without rounds."""
        return self.settings.paradigm == INDEPENDENT

    @property
    def must_measure(self) -> bool:
        """Whether the next round has to measure rates, without which paradigms and choices cannot decide."""
        return measures_in_rounds(self.settings, self.cluster.num_slots) and self.lacks_rates

    @property
    def lacks_rates(self) -> bool:
        """Whether a DNN has no rate that the paradigm needs: it has just joined, or the run begins."""
        if not needs_rates(self.given.paradigm):
            return False
        return not all(self.state.rates.is_measured(dnn_id, 1) for dnn_id in self.state.live)

    def measuring(self, plan: RoundPlan) -> RoundPlan:
        """The plan, with the DNNs whose first pass measures a rate that the schedule needs and lacks."""
        if not needs_rates(self.given.paradigm):
            return plan
        known = plan.predicted_rate_samples_per_s
        lacking = tuple(g.dnn_id for g in plan.groups if len(g.slots) == 1 and g.dnn_id not in known)
        return replace(plan, measures=lacking)

    def planner(self) -> rounds.Planner:
        """A planner of rounds with what is known now."""
        s = self.state
        return rounds.Planner(
            self.cluster,
            self.settings,
            s.rates,
            self.flotillas,
            s.preprocessing_samples_per_s,
            s.left_out,
            s.built,
        )

    def flotillas(self) -> FlotillaPlanner:
        """The planner of flotillas for the present rates, of the live DNNs that have one.

        A paused DNN may have none yet. It is in no flotilla before a round has measured it.
        """
        s, settings = self.state, self.settings
        delta = settings.delta
        assert delta is not None, "a schedule that forms flotillas has a delta"
        if self._flotillas is None or self._flotillas[0] is not s.rates or self._flotillas[1] != delta:
            planner = FlotillaPlanner(
                [dnn_id for dnn_id in s.live_ids() if s.rates.is_measured(dnn_id, 1)],
                s.rates,
                self.cluster.num_slots,
                delta,
                settings.max_slots_per_dnn,
                self.batch_sizes,
            )
            self._flotillas = s.rates, delta, planner
        return self._flotillas[2]

    @property
    def last_flotillas(self) -> FlotillaPlanner | None:
        """The planner that formed the last flotilla; None if none was formed."""
        return None if self._flotillas is None else self._flotillas[2]

    def ladders(self) -> Mapping[str, Ladder]:
        """The numbers of slots that each live DNN may have, by the rates of now; see `share_slots`."""
        s = self.state
        if self._ladders is None or self._ladders[0] is not s.rates:
            specs, limit = [s.dnns[d].spec for d in s.live], self.settings.max_slots_per_dnn
            self._ladders = s.rates, ladders_of(specs, s.rates, limit, self.cluster.num_slots)
        return self._ladders[1]

    def waiting_alone(self) -> deque[Dnn]:
        """DNNs in the order in which they train alone, from the first one that waits on; see `fill_slots`.

        No DNN starts to wait again before the run ends, so the order is made once, and again when one joins.
        """
        if self._waiting is None:
            s = self.state
            left = {d: s.dnns[d].spec.stop.max_epochs - s.dnns[d].epochs for d in s.live}
            order = [s.dnns[dnn_id] for dnn_id in first_order(left, s.rates, self.settings)]
            order.sort(key=lambda dnn: not (dnn.epochs or dnn.position))  # stable
            self._waiting = deque(order)
        while self._waiting and self._waiting[0].state is not DnnState.WAITING:
            self._waiting.popleft()
        return self._waiting

    def admit(self, spec: DnnSpec, rates: Mapping[int, float]) -> None:
        """Add a DNN that waits for its first round; the next decisions know it.

        Args:
            rates: samples/s by number of slots, as far as they are known.
        """
        s = self.state
        s.dnns[spec.dnn_id] = Dnn(spec, DnnState.WAITING)
        s.live[spec.dnn_id] = None
        for num_slots, samples_per_s in rates.items():
            s.rates = s.rates.with_measurement(spec.dnn_id, num_slots, samples_per_s)
        self.specs += (spec,)
        self.batch_sizes[spec.dnn_id] = spec.batch_size
        self.basis = basis_of(self.specs, self.candidates, self.given.max_slots_per_dnn, self.cluster)
        self._waiting = self._ladders = self._flotillas = None

    def move(self, dnn: Dnn, to: DnnState) -> None:
        """Change the state of a DNN, along the table of legal transitions."""
        allowed = TRANSITIONS[dnn.state]
        if to not in allowed:
            names = ", ".join(sorted(allowed)) or "none, it is final"
            raise self.error(
                f"{dnn.spec.dnn_id} cannot go from {dnn.state} to {to}; allowed: {names}", dnn.spec.dnn_id
            )
        dnn.state = to
        if to in TERMINAL:
            del self.state.live[dnn.spec.dnn_id]
            self.state.to_stop.discard(dnn.spec.dnn_id)

    def leave(self, group: Group, reason: Leaving, detail: str = "") -> LeaveRound:
        """Ask a group to save a checkpoint and leave."""
        self.move(self.state.dnns[group.dnn_id], DnnState.LEAVING)
        group.leaving, group.detail = reason, detail
        return LeaveRound(group.dnn_id, reason, detail)

    def dnn_of(self, event: Any) -> Dnn:
        """The DNN that an event is about."""
        dnn = self.state.dnns.get(event.dnn_id)
        if dnn is None:
            raise self.error(f"got {event!r}, but the ensemble has no DNN {event.dnn_id!r}")
        return dnn

    def unexpected(self, event: Event, dnn: Dnn, allowed: str) -> ControlError:
        """Make the error for an event that cannot happen in the DNN's state."""
        return self.error(
            f"got {event!r} while {dnn.spec.dnn_id} is {dnn.state} (phase {self.state.phase}); "
            f"allowed: {allowed}",
            dnn.spec.dnn_id,
        )

    def error(self, problem: str, dnn_id: str = "") -> ControlError:
        """Make an error with the events that led to it."""
        return ControlError(problem, dnn_id, self.log.of(dnn_id) if dnn_id else (), self.log.events)

    def finish(self) -> list[Instruction]:
        """End the run: no group is left and none will start."""
        s = self.state
        if s.live_ids() or (s.suspend_reason and s.num_open):
            s.outcome = "suspended" if s.suspend_reason else "profiled"
        else:
            failed = any(dnn.state is DnnState.FAILED for dnn in s.dnns.values())
            s.outcome = "failed-dnns" if failed else "done"
        s.phase = Phase.FINISHED
        return [Finish(s.outcome)]

    def resume_state(self) -> ResumeState:
        """Return the state from which the next run continues the schedule.

        While groups train, their checkpoints are older than this: a caller that may die replaces `dnns` by
        what it reads from the checkpoints. After Finish it is exact.
        """
        s = self.state
        return ResumeState(
            dnns={dnn_id: dnn.progress() for dnn_id, dnn in s.dnns.items()},
            next_pass=s.next_pass,
            next_round_index=s.next_round_index,
            interrupted=s.plan if s.plan is not None else s.interrupted,
            cluster=self.cluster,
            preprocessing_samples_per_s=s.preprocessing_samples_per_s,
            kept=dict(s.kept),
            left_out=dict(s.left_out),
            built=dict(s.built),
            choice=s.choice,
            num_open=s.num_open,
        )

    def bound_log(self) -> None:
        """Between two rounds: start a log that is half full again here, so that it can still be replayed."""
        if self.log.is_half_full:
            self.origin_specs = self.specs
            self.origin_rates, self.origin_resume = self.state.all_rates(), self.resume_state()
            self.log.restart([Started()])

    def _forget_left_out(self) -> None:
        """Forget all left-out slots: the hosts are new. A round that shrank for them does not continue."""
        s = self.state
        live_ids = s.live_ids()
        self.forgotten = tuple(d for d in live_ids if d in s.left_out)
        if rounds.is_short(rounds.slots_of(s.interrupted), s.left_out, live_ids):
            s.interrupted = None
        if rounds.is_short(s.kept, s.left_out, live_ids):
            s.kept = {}
        s.left_out = {}

    def _above_limit(self, slots: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
        """Live DNNs that would have more slots than allowed, if they continued on these."""
        s, limit, batch_sizes = self.state, self.given.max_slots_per_dnn, self.batch_sizes
        most = {d: size if limit is None else min(size, limit) for d, size in batch_sizes.items()}
        return tuple(d for d in s.live_ids() if d in slots and len(s.remaining(d, slots[d])) > most[d])

    def _check_input(self) -> None:
        if self.cluster.num_slots < 1:
            raise ClusterError("the allocation has no slot; give every node at least one, or ask for more")
        if self.given.paradigm not in (*PARADIGM_NAMES, AUTO):
            allowed = ", ".join((*PARADIGM_NAMES, AUTO))
            raise self.error(f"schedule.paradigm: got {self.given.paradigm!r}, allowed: {allowed}")
        counts = Counter(spec.dnn_id for spec in self.specs)
        repeated = sorted(dnn_id for dnn_id, count in counts.items() if count > 1)
        if repeated:
            raise self.error(f"DNNs with the same name: {', '.join(repeated)}; give every DNN its own name")
        for dnn_id, progress in self.origin_resume.dnns.items():
            if progress.epochs != len(progress.history):
                raise self.error(
                    f"{dnn_id} has completed {progress.epochs} epochs, but its history holds "
                    f"{len(progress.history)}; restore both from one checkpoint"
                )


def replay(
    specs: Iterable[DnnSpec],
    cluster: Cluster,
    settings: ScheduleSettings,
    rates: RateTable,
    resume: ResumeState | None,
    events: Iterable[Event],
) -> Ensemble:
    """Replay a recorded log: gives the same state, or the same error, as the run that recorded it."""
    ensemble = Ensemble(specs, cluster, settings, rates, resume)
    for event in events:
        ensemble.handle(event)
    return ensemble


def _on_started(ensemble: Ensemble, event: Started) -> list[Instruction]:
    s = ensemble.state
    if s.phase is not Phase.NEW:
        raise ensemble.error(f"got a second Started in phase {s.phase}")
    for dnn in s.dnns.values():
        if not dnn.is_live:
            continue
        if dnn.state is not DnnState.WAITING:
            ensemble.move(dnn, DnnState.WAITING)
        if rounds.is_inside_pass(dnn.position, ensemble.settings.num_positions):
            continue
        # Its checkpoint is whole and says that it has converged, whatever the earlier run recorded.
        decision = evaluate(dnn.spec.stop, dnn.history)
        if decision is not None:
            ensemble.move(dnn, DnnState.DONE)
            dnn.detail, dnn.position = decision.detail, None
    return profile_or_train(ensemble)


def _on_preprocessing_measured(ensemble: Ensemble, event: PreprocessingMeasured) -> list[Instruction]:
    if not 0.0 < event.samples_per_s < float("inf"):
        raise ensemble.error(f"got {event!r}, allowed: a rate > 0")
    ensemble.state.preprocessing_samples_per_s = event.samples_per_s
    return []


def _on_checkpoint_written(ensemble: Ensemble, event: CheckpointWritten) -> list[Instruction]:
    dnn = ensemble.dnn_of(event)
    if not dnn.is_live:
        return []
    group = ensemble.state.groups.get(event.dnn_id)
    if group is None or group.is_profiling or event.epoch > dnn.epochs:
        raise ensemble.unexpected(event, dnn, f"a checkpoint of a DNN in the round, of epoch <= {dnn.epochs}")
    if event.epoch < dnn.epochs or not group.leaving:
        return []  # written during the round; later events may have overtaken it
    group.is_saved = True
    if not ensemble.has_rounds:
        ensemble.state.save_s[event.dnn_id] = event.seconds + event.held_s
    if group.leaving is Leaving.SUSPENDED:
        # A stop may come between the end of its last pass and the decision on it.
        is_inside = rounds.is_inside_pass(event.position, ensemble.settings.num_positions)
        decision = None if is_inside else evaluate(dnn.spec.stop, dnn.history)
        if decision is None:
            dnn.position = event.position
        else:
            ensemble.move(dnn, DnnState.DONE)
            dnn.detail = decision.detail
    elif group.leaving in STATE_WHEN_SAVED:
        ensemble.move(dnn, STATE_WHEN_SAVED[group.leaving])
        dnn.detail = group.detail
    return []


def _on_group_left(ensemble: Ensemble, event: GroupLeft) -> list[Instruction]:
    s, dnn = ensemble.state, ensemble.dnn_of(event)
    group = s.groups.get(event.dnn_id)
    if group is None:
        raise ensemble.unexpected(event, dnn, "GroupLeft of a DNN that has a group")
    if dnn.is_live:
        if group.is_profiling and not group.is_measured:
            raise ensemble.unexpected(event, dnn, "RateMeasured or DnnFailed before GroupLeft")
        if not group.is_profiling and not group.leaving:
            raise ensemble.unexpected(event, dnn, "GroupLeft of a group that was asked to leave, or failed")
        if not group.is_profiling and not group.is_saved:
            raise ensemble.unexpected(event, dnn, f"CheckpointWritten of epoch {dnn.epochs} before GroupLeft")
        ensemble.move(dnn, STATE_WHEN_LEFT[group.leaving])
        stop_waiting(ensemble)
    del s.groups[event.dnn_id]
    if group.leaving is Leaving.PAUSED and s.plan is not None:  # an interrupted round continues without it
        s.plan = without(s.plan, {event.dnn_id}) or s.plan
    if s.phase is Phase.ROUND and not ensemble.has_rounds:
        if not dnn.is_live:
            s.reserved.pop(event.dnn_id, None)
        return fill_slots(ensemble)
    if s.groups:
        return []
    if s.phase is Phase.PROFILING:
        return profile_or_train(ensemble)
    assert s.plan is not None
    stop = StopStream(s.plan.index, bool(s.suspend_reason), continues=s.interrupted is not None)
    if not s.suspend_reason or not any(other.state is DnnState.SUSPENDED for other in s.dnns.values()):
        s.plan = None
    return [stop, *profile_or_train(ensemble)]


def _on_dnn_failed(ensemble: Ensemble, event: DnnFailed) -> list[Instruction]:
    dnn = ensemble.dnn_of(event)
    if not dnn.is_live:
        return []
    ensemble.move(dnn, DnnState.FAILED)
    dnn.cause, dnn.detail, dnn.position = event.cause or "error", event.detail, None
    group = ensemble.state.groups.get(event.dnn_id)
    if group is not None:
        group.leaving, group.training_pass = Leaving.FAILED, None
    return decide(ensemble)


def _on_suspend_requested(ensemble: Ensemble, event: SuspendRequested) -> list[Instruction]:
    s = ensemble.state
    if s.phase is Phase.FINISHED or s.suspend_reason:
        return []
    s.suspend_reason = event.reason or "asked to stop"
    if s.phase is Phase.CHOOSING:
        return ensemble.finish()  # no group trains; the answer is no longer needed
    staying = s.staying_groups() if s.phase is Phase.ROUND else []
    for group in staying:
        ensemble.move(s.dnns[group.dnn_id], DnnState.LEAVING)
        group.leaving = Leaving.SUSPENDED
    return [SuspendGroups(tuple(group.dnn_id for group in staying))] if staying else []


_HANDLERS: dict[type[Event], Callable[[Ensemble, Any], list[Instruction]]] = {
    Started: _on_started,
    RateMeasured: on_rate_measured,
    PreprocessingMeasured: _on_preprocessing_measured,
    EpochDone: on_epoch_done,
    CheckpointWritten: _on_checkpoint_written,
    GroupLeft: _on_group_left,
    DnnFailed: _on_dnn_failed,
    ScheduleChosen: on_schedule_chosen,
    DnnAdded: on_dnn_added,
    SearchEnded: on_search_ended,
    StopAsked: on_stop_asked,
    SuspendRequested: _on_suspend_requested,
}
