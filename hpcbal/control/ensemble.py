"""The ensemble's state machine: events in, instructions out, no IO, no clock, no randomness."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hpcbal.cluster.layout import Cluster
from hpcbal.control import invariants, rounds, snapshot
from hpcbal.control.event_log import ControlError, EventLog
from hpcbal.control.messages import (
    CheckpointWritten,
    DnnFailed,
    EpochDone,
    EpochRecord,
    Event,
    Finish,
    GroupLeft,
    Instruction,
    LeaveRound,
    NextPass,
    Position,
    PreprocessingMeasured,
    RateMeasured,
    RoundPlan,
    Started,
    StartProfiling,
    StartRound,
    StopStream,
    SuspendGroups,
    SuspendRequested,
)
from hpcbal.control.profiling import missing_jobs, next_wave, place_wave
from hpcbal.control.progress import DnnSpec, ResumeState, ScheduleSettings
from hpcbal.control.state import Dnn, EnsembleState, Group
from hpcbal.control.states import TRANSITIONS, DnnState, Phase
from hpcbal.control.stopping import evaluate
from hpcbal.errors import ClusterError, InputError
from hpcbal.policies import RateTable


class Ensemble:
    """Trains an ensemble to its end: profile, then round after round ([FLEET] Alg. 1).

    The caller feeds what has happened to `handle` and carries out the instructions it returns, in order;
    the MPI runtime does so with messages, the simulator in virtual time. A round is pass-synchronous: every
    group trains pass p, reports EpochDone and waits; when all have reported, all is decided at once.

    Args:
        specs: the DNNs, in the order of the config.
        cluster: the allocation; at least one GPU.
        settings: how to schedule.
        rates: training rates that are known; those that are missing are profiled.
        resume: how far an earlier run came; None: a fresh start.

    Raises:
        ClusterError: the allocation has no GPU.
        ControlError: two DNNs of one name, or a resume state that contradicts itself.
    """

    def __init__(
        self,
        specs: Iterable[DnnSpec],
        cluster: Cluster,
        settings: ScheduleSettings,
        rates: RateTable,
        resume: ResumeState | None = None,
    ) -> None:
        self._specs = tuple(specs)
        self._cluster = cluster
        self._settings = settings
        self._origin = (rates, resume or ResumeState())
        self._log = EventLog(settings.max_events)
        self._check_input(self._origin[1])
        self._state = EnsembleState.begin(self._specs, *self._origin)
        if not rounds.fits(self._state.interrupted, self._origin[1].cluster, cluster):
            self._state.interrupted = None
        self._handlers: dict[type[Event], Callable[[Any], list[Instruction]]] = {
            Started: self._on_started,
            RateMeasured: self._on_rate_measured,
            PreprocessingMeasured: self._on_preprocessing_measured,
            EpochDone: self._on_epoch_done,
            CheckpointWritten: self._on_checkpoint_written,
            GroupLeft: self._on_group_left,
            DnnFailed: self._on_dnn_failed,
            SuspendRequested: self._on_suspend_requested,
        }

    # ---- what callers see ----------------------------------------------------------------------

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event in; the only way to change the state.

        Reports about a DNN that has already failed are ignored, since several ranks of a group may report
        one failure, and others were under way; so is a failure of a DNN that is done and on disk.

        Returns: what to do now, in this order; empty if there is nothing to do but wait.
        Raises:
            ControlError: the event cannot happen in this state; nothing but the log has changed.
            InputError: a stop rule names a metric that the DNN does not report, or a rate is not known.
        """
        self._log.append(event)
        handler = self._handlers.get(type(event))
        if handler is None:
            known = ", ".join(sorted(kind.__name__ for kind in self._handlers))
            raise self._error(f"got an event of type {type(event).__name__}, allowed: {known}")
        if self.finished and not isinstance(event, SuspendRequested):
            raise self._error(f"got {event!r} after Finish({self._state.outcome!r}), allowed: nothing more")
        if self._state.phase is Phase.NEW and not isinstance(event, Started | SuspendRequested):
            raise self._error(f"got {event!r} before Started, which must be the first event")
        return handler(event)

    @property
    def finished(self) -> bool:
        """Whether Finish was returned."""
        return self._state.phase is Phase.FINISHED

    @property
    def outcome(self) -> str:
        """Of Finish: 'done', 'failed-dnns' or 'suspended'; empty before."""
        return self._state.outcome

    @property
    def rates(self) -> RateTable:
        """All rates known so far, to be kept for the next run."""
        return self._state.all_rates()

    @property
    def plan(self) -> RoundPlan | None:
        """The round that runs, or that a suspension has interrupted."""
        return self._state.plan

    @property
    def events(self) -> tuple[Event, ...]:
        """The bounded event log; `replay(*ensemble.origin, ensemble.events)` leads to the same state."""
        return self._log.events

    @property
    def origin(self) -> tuple[tuple[DnnSpec, ...], Cluster, ScheduleSettings, RateTable, ResumeState]:
        """What the event log starts from."""
        return (self._specs, self._cluster, self._settings, *self._origin)

    @property
    def state(self) -> EnsembleState:
        """The state itself, for tests and reports; not to be changed."""
        return self._state

    def resume_state(self) -> ResumeState:
        """What a run after this one needs, as far as the schedule knows it.

        While groups train, their checkpoints are behind: a caller that may die replaces `dnns` by what it
        reads from the checkpoints. After Finish it is exact.
        """
        s = self._state
        return ResumeState(
            dnns={dnn_id: dnn.progress() for dnn_id, dnn in s.dnns.items()},
            next_pass=s.next_pass,
            next_round_index=s.next_round_index,
            interrupted=s.plan if s.plan is not None else s.interrupted,
            cluster=self._cluster,
            preprocessing_samples_per_s=s.preprocessing_samples_per_s,
        )

    def snapshot(self) -> dict[str, Any]:
        """The state as plain JSON values, for status.json; see `snapshot.render`."""
        return snapshot.render(self._state)

    def check_invariants(self) -> None:
        """Raise ControlError if the state contradicts itself."""
        for problem in invariants.problems(self._state, self._cluster):
            raise self._error(f"internal error: {problem}")

    # ---- start, profiling ------------------------------------------------------------------------

    def _on_started(self, event: Started) -> list[Instruction]:
        s = self._state
        if s.phase is not Phase.NEW:
            raise self._error(f"got a second Started in phase {s.phase}")
        for dnn in s.dnns.values():
            if not dnn.is_live:
                continue
            if dnn.state is not DnnState.WAITING:
                self._move(dnn, DnnState.WAITING)
            if rounds.is_inside_pass(dnn.position, self._settings.num_positions):
                continue
            # Its checkpoint is whole and says that it has converged, whatever the run before had noted.
            decision = evaluate(dnn.spec.stop, dnn.history)
            if decision is not None:
                dnn.detail = decision.detail
                self._move(dnn, DnnState.DONE)
        return self._profile_or_train()

    def _profile_or_train(self) -> list[Instruction]:
        """No group is left: start the next profiling wave, or the first round when all rates are known."""
        s = self._state
        s.rates, s.fresh_rates = s.all_rates(), {}
        if s.suspend_reason or not s.live_ids():
            return self._finish()
        jobs = missing_jobs(s.live_ids(), list(s.dnns), s.rates, self._cluster, self._settings)
        if not self._settings.profile:
            unknown = [job.dnn_id for job in jobs if job.num_gpus == 1]
            if unknown:
                raise InputError(
                    f"the rates of {', '.join(unknown)} on 1 GPU are not known and profiling is off; "
                    "give them in the rate table or let hpcbal profile"
                )
            jobs = ()
        if not jobs:
            return self._next_round()
        s.phase = Phase.PROFILING
        groups = place_wave(next_wave(jobs, self._cluster.num_gpus), self._cluster)
        for group in groups:
            self._move(s.dnns[group.dnn_id], DnnState.PROFILING)
            s.groups[group.dnn_id] = Group(group.dnn_id, group.gpus, is_profiling=True)
        return [StartProfiling(groups)]

    def _on_rate_measured(self, event: RateMeasured) -> list[Instruction]:
        dnn = self._dnn(event)
        if dnn.state is DnnState.FAILED:
            return []
        group = self._state.groups.get(event.dnn_id)
        if group is None or not group.is_profiling or group.is_measured:
            raise self._unexpected(event, dnn, "one RateMeasured of a DNN in the running profiling wave")
        if event.num_gpus != len(group.gpus) or not 0.0 < event.samples_per_s < float("inf"):
            raise self._unexpected(event, dnn, f"a rate > 0 on {len(group.gpus)} GPUs")
        group.is_measured = True
        self._state.fresh_rates[event.dnn_id, event.num_gpus] = event.samples_per_s
        return []

    def _on_preprocessing_measured(self, event: PreprocessingMeasured) -> list[Instruction]:
        if not 0.0 < event.samples_per_s < float("inf"):
            raise self._error(f"got {event!r}, allowed: a rate > 0")
        self._state.preprocessing_samples_per_s = event.samples_per_s
        return []

    # ---- rounds --------------------------------------------------------------------------------

    def _next_round(self) -> list[Instruction]:
        """No group is left: continue the interrupted round, finish stopped passes, or form a new flotilla."""
        s = self._state
        if s.suspend_reason or not s.live_ids():
            return self._finish()
        if self._log.is_half_full:
            self._origin = (s.all_rates(), self.resume_state())
            self._log.restart([Started()])
        interrupted, s.interrupted = s.interrupted, None
        plan = None
        if interrupted is not None:
            plan = self._continued_round(interrupted)
        return self._start_round(plan or self._catch_up_round() or self._new_round(s.live_ids(), s.next_pass))

    def _continued_round(self, interrupted: RoundPlan) -> RoundPlan | None:
        """The interrupted round without the DNNs that are through; None if it was over."""
        s, num_positions = self._state, self._settings.num_positions
        groups = [g for g in interrupted.groups if g.dnn_id in s.dnns and s.dnns[g.dnn_id].is_live]
        if not groups:
            return None
        position = {}
        for group in groups:
            dnn = s.dnns[group.dnn_id]
            planned_pass = interrupted.start[group.dnn_id].pass_index
            position[group.dnn_id] = rounds.next_position(
                planned_pass, dnn.position, dnn.history, num_positions
            )
        first_pass = min(p.pass_index for p in position.values())
        if all(p == Position(first_pass) for p in position.values()):
            # All stand between two passes: what was to be decided there is decided again, the same way.
            going_on = {g.dnn_id: len(g.gpus) for g in groups}
            if self._is_over(interrupted, first_pass - 1, going_on):
                return None
        rates = interrupted.predicted_rate_samples_per_s
        return RoundPlan(
            index=s.next_round_index,
            groups=tuple(groups),
            first_pass=first_pass,
            start={d: rounds.start_of(p, first_pass, num_positions) for d, p in position.items()},
            epochs={d: s.dnns[d].epochs for d in position},
            num_preprocessors=self._planner().num_preprocessors([rates[d] for d in position]),
            predicted_rate_samples_per_s={d: rates[d] for d in position},
            num_gpus=rounds.num_gpus_of(interrupted),
            last_pass=interrupted.last_pass,
        )

    def _catch_up_round(self) -> RoundPlan | None:
        """A round of DNNs that were stopped inside the same pass, to its end; None if there are none.

        Needed when the allocation has changed, so that the interrupted round cannot go on as it was.
        """
        s, num_positions = self._state, self._settings.num_positions
        position = {
            d: p
            for d in s.live_ids()
            if (p := s.dnns[d].position) is not None and rounds.is_inside_pass(p, num_positions)
        }
        if not position:
            return None
        first_pass = min(p.pass_index for p in position.values())
        start = {d: p for d, p in position.items() if p.pass_index == first_pass}
        return self._new_round(list(start), first_pass, start, last_pass=first_pass)

    def _new_round(
        self,
        candidates: Sequence[str],
        first_pass: int,
        start: dict[str, Position] | None = None,
        last_pass: int | None = None,
    ) -> RoundPlan:
        s = self._state
        return self._planner().new_round(
            candidates,
            index=s.next_round_index,
            first_pass=first_pass,
            start=start or {},
            epochs={d: s.dnns[d].epochs for d in candidates},
            last_pass=last_pass,
        )

    def _start_round(self, plan: RoundPlan) -> list[Instruction]:
        s = self._state
        s.phase, s.plan, s.pass_index = Phase.ROUND, plan, plan.first_pass
        s.next_round_index = plan.index + 1
        s.next_pass = max(s.next_pass, plan.first_pass + 1)
        for planned in plan.groups:
            dnn, start = s.dnns[planned.dnn_id], plan.start[planned.dnn_id]
            self._move(dnn, DnnState.RUNNING)
            dnn.position = None
            group = Group(planned.dnn_id, planned.gpus)
            if start.offset == self._settings.num_positions:
                group.reported_pass = start.pass_index
            else:
                group.training_pass, group.reported_pass = start.pass_index, start.pass_index - 1
            s.groups[planned.dnn_id] = group
        return [StartRound(plan)]

    def _on_epoch_done(self, event: EpochDone) -> list[Instruction]:
        s, dnn = self._state, self._dnn(event)
        if dnn.state is DnnState.FAILED:
            return []
        group = s.groups.get(event.dnn_id)
        if group is None or group.training_pass != event.pass_index:
            expected = "nothing of it" if group is None else f"pass {group.training_pass}"
            raise self._unexpected(event, dnn, f"EpochDone of a pass that it trains ({expected})")
        record = EpochRecord(dnn.epochs + 1, event.pass_index, dict(event.metrics), event.seconds)
        evaluate(dnn.spec.stop, [record])  # a missing metric must be told before anything is changed
        dnn.history.append(record)
        group.training_pass, group.reported_pass, group.is_saved = None, event.pass_index, False
        return self._decide()

    def _decide(self) -> list[Instruction]:
        """If all groups have finished the pass: who has converged, and does the round go on?

        Source: [FLEET] Sec. 4.3.2, "Training". Deviation: all groups are judged at the end of the pass,
        together, so that the result does not depend on which group reports first.
        """
        s = self._state
        if s.phase is not Phase.ROUND or s.suspend_reason:
            return []
        assert s.plan is not None
        told: list[Instruction] = []
        while (staying := s.staying_groups()) and (
            finished := min(g.reported_pass for g in staying)
        ) >= s.pass_index:
            waiting = [g for g in staying if g.reported_pass == finished and g.training_pass is None]
            told += self._leave_if_converged(waiting)
            staying = s.staying_groups()
            going_on = {g.dnn_id: len(g.gpus) for g in staying}
            if self._is_over(s.plan, finished, going_on):
                return told + [self._leave(g, "regroup") for g in staying]
            told += self._next_pass([g for g in waiting if not g.leaving], finished + 1)
        return told

    def _leave_if_converged(self, groups: Sequence[Group]) -> list[Instruction]:
        told: list[Instruction] = []
        for group in groups:
            dnn = self._state.dnns[group.dnn_id]
            decision = evaluate(dnn.spec.stop, dnn.history)
            if decision is not None:
                told.append(self._leave(group, "converged", decision.detail))
        return told

    def _is_over(self, plan: RoundPlan, finished: int, going_on: dict[str, int]) -> bool:
        """Whether the round ends with pass `finished`, `going_on` being left of it."""
        if not going_on or (plan.last_pass is not None and finished >= plan.last_pass):
            return True
        if finished + 1 < self._state.next_pass:
            return False  # an interrupted round had begun the next pass already: it had been decided to go on
        leaving = {g.dnn_id for g in self._state.groups.values() if g.leaving == "converged"}
        candidates = [d for d in self._state.live_ids() if d not in leaving]
        return self._planner().must_regroup(going_on, rounds.num_gpus_of(plan), candidates)

    def _next_pass(self, groups: Sequence[Group], pass_index: int) -> list[Instruction]:
        """Let `groups`, which wait at the end of the pass before, go on; those ahead are not told."""
        s = self._state
        s.pass_index = pass_index
        s.next_pass = max(s.next_pass, pass_index + 1)
        if not groups:
            return []
        for group in groups:
            group.training_pass = pass_index
        dnn_ids = tuple(group.dnn_id for group in groups)
        return [NextPass(dnn_ids, pass_index, dnn_ids if self._settings.checkpoint_every_pass else ())]

    def _leave(self, group: Group, reason: str, detail: str = "") -> LeaveRound:
        self._move(self._state.dnns[group.dnn_id], DnnState.LEAVING)
        group.leaving, group.detail = reason, detail
        return LeaveRound(group.dnn_id, reason, detail)

    # ---- leaving -------------------------------------------------------------------------------

    def _on_checkpoint_written(self, event: CheckpointWritten) -> list[Instruction]:
        dnn = self._dnn(event)
        if not dnn.is_live:
            return []
        group = self._state.groups.get(event.dnn_id)
        if group is None or group.is_profiling or event.epoch > dnn.epochs:
            raise self._unexpected(
                event, dnn, f"a checkpoint of a DNN in the round, of epoch <= {dnn.epochs}"
            )
        if event.epoch < dnn.epochs or not group.leaving:
            return []  # one in the middle of the round, perhaps overtaken by what came after
        group.is_saved = True
        if group.leaving == "suspended":
            dnn.position = event.position
        elif group.leaving == "converged":
            dnn.detail = group.detail
            self._move(dnn, DnnState.DONE)
        return []

    def _on_group_left(self, event: GroupLeft) -> list[Instruction]:
        s, dnn = self._state, self._dnn(event)
        group = s.groups.get(event.dnn_id)
        if group is None:
            raise self._unexpected(event, dnn, "GroupLeft of a DNN that has a group")
        if dnn.is_live:
            if group.is_profiling and not group.is_measured:
                raise self._unexpected(event, dnn, "RateMeasured or DnnFailed before GroupLeft")
            if not group.is_profiling and not group.leaving:
                raise self._unexpected(event, dnn, "GroupLeft of a group that was told to leave, or failed")
            if not group.is_profiling and not group.is_saved:
                raise self._unexpected(
                    event, dnn, f"CheckpointWritten of epoch {dnn.epochs} before GroupLeft"
                )
            suspended = group.leaving == "suspended"
            self._move(dnn, DnnState.SUSPENDED if suspended else DnnState.WAITING)
        del s.groups[event.dnn_id]
        if s.groups:
            return []
        if s.phase is Phase.PROFILING:
            return self._profile_or_train()
        assert s.plan is not None
        stop = StopStream(s.plan.index)
        if not any(dnn.state is DnnState.SUSPENDED for dnn in s.dnns.values()):
            s.plan = None
        return [stop, *self._next_round()]

    def _on_dnn_failed(self, event: DnnFailed) -> list[Instruction]:
        s, dnn = self._state, self._dnn(event)
        if not dnn.is_live:
            return []
        self._move(dnn, DnnState.FAILED)
        dnn.cause, dnn.detail, dnn.position = event.cause, event.detail, None
        group = s.groups.get(event.dnn_id)
        if group is None:
            return []
        group.leaving, group.training_pass = "failed", None
        return self._decide()

    def _on_suspend_requested(self, event: SuspendRequested) -> list[Instruction]:
        s = self._state
        if self.finished or s.suspend_reason:
            return []
        s.suspend_reason = event.reason or "suspended"
        staying = s.staying_groups() if s.phase is Phase.ROUND else []
        for group in staying:
            self._move(s.dnns[group.dnn_id], DnnState.LEAVING)
            group.leaving = "suspended"
        return [SuspendGroups(tuple(group.dnn_id for group in staying))] if staying else []

    def _finish(self) -> list[Instruction]:
        s = self._state
        if s.live_ids():
            s.outcome = "suspended"
        else:
            failed = any(dnn.state is DnnState.FAILED for dnn in s.dnns.values())
            s.outcome = "failed-dnns" if failed else "done"
        s.phase = Phase.FINISHED
        return [Finish(s.outcome)]

    # ---- helpers ---------------------------------------------------------------------------------

    def _planner(self) -> rounds.Planner:
        s = self._state
        return rounds.Planner(self._cluster, self._settings, s.rates, s.preprocessing_samples_per_s)

    def _move(self, dnn: Dnn, to: DnnState) -> None:
        allowed = TRANSITIONS[dnn.state]
        if to not in allowed:
            names = ", ".join(sorted(allowed)) or "none, it is final"
            raise self._error(
                f"{dnn.spec.dnn_id} cannot go from {dnn.state} to {to}; allowed: {names}", dnn.spec.dnn_id
            )
        dnn.state = to

    def _dnn(self, event: Any) -> Dnn:
        dnn = self._state.dnns.get(event.dnn_id)
        if dnn is None:
            raise self._error(f"got {event!r}, but the ensemble has no DNN {event.dnn_id!r}")
        return dnn

    def _unexpected(self, event: Event, dnn: Dnn, allowed: str) -> ControlError:
        return self._error(
            f"got {event!r} while {dnn.spec.dnn_id} is {dnn.state} (phase {self._state.phase}); "
            f"allowed: {allowed}",
            dnn.spec.dnn_id,
        )

    def _error(self, problem: str, dnn_id: str = "") -> ControlError:
        return ControlError(problem, dnn_id, self._log.of_dnn(dnn_id) if dnn_id else (), self._log.events)

    def _check_input(self, resume: ResumeState) -> None:
        if self._cluster.num_gpus < 1:
            raise ClusterError(
                "the allocation has no GPU slot; give every node at least one, or ask for more"
            )
        ids = [spec.dnn_id for spec in self._specs]
        repeated = sorted({dnn_id for dnn_id in ids if ids.count(dnn_id) > 1})
        if repeated:
            raise self._error(f"DNNs of the same name: {', '.join(repeated)}; every DNN needs its own")
        for dnn_id, progress in resume.dnns.items():
            if progress.epochs != len(progress.history):
                raise self._error(
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
    """Go through a recorded log again: the same state, or the same error, as the run that recorded it."""
    ensemble = Ensemble(specs, cluster, settings, rates, resume)
    for event in events:
        ensemble.handle(event)
    return ensemble
