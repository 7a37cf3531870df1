"""The ensemble's state machine: events in, instructions out, no IO, no clock, no randomness."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hpcbal.cluster.layout import Cluster
from hpcbal.control import rounds, snapshot
from hpcbal.control.alone import fill_gpus
from hpcbal.control.core import Core
from hpcbal.control.profiling_phase import on_rate_measured, profile_or_train
from hpcbal.control.progress import DnnSpec, ResumeState, ScheduleSettings, evaluate
from hpcbal.control.pruning import without
from hpcbal.control.round_phase import decide, next_round, on_epoch_done, on_schedule_chosen, skip_passes
from hpcbal.control.snapshot import idle_slots
from hpcbal.control.state import EnsembleState
from hpcbal.control.states import STATE_WHEN_LEFT, STATE_WHEN_SAVED, DnnState, Leaving, Phase
from hpcbal.events.ensemble import (
    CheckpointWritten,
    DnnFailed,
    EpochDone,
    Event,
    GroupLeft,
    IdleSlots,
    Instruction,
    PreprocessingMeasured,
    RateMeasured,
    RoundPlan,
    Schedule,
    ScheduleChosen,
    Started,
    StopStream,
    SuspendGroups,
    SuspendRequested,
)
from hpcbal.policies import RateTable


class Ensemble:
    """Trains an ensemble to its end: profile, then round after round ([FLEET] Alg. 1).

    The caller passes every event to `handle` and carries out the instructions that it returns, in order. The
    MPI runtime does so with messages, the simulator in virtual time. A round is pass-synchronous: every group
    trains pass p, reports EpochDone and waits; when all have reported, the state machine decides for all.

    Args:
        specs: the DNNs, in the order of the config.
        cluster: the allocation; at least one GPU.
        settings: how to schedule.
        rates: known training rates; missing ones are profiled.
        resume: the progress of an earlier run; None: a fresh start.

    Raises:
        ClusterError: if the allocation has no GPU.
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
        self._core = Core(specs, cluster, settings, rates, resume or ResumeState())

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
        core = self._core
        core.log.append(event)
        handler = _HANDLERS.get(type(event))
        if handler is None:
            known = ", ".join(sorted(kind.__name__ for kind in _HANDLERS))
            raise core.error(f"got an event of type {type(event).__name__}, allowed: {known}")
        if self.finished and not isinstance(event, SuspendRequested | ScheduleChosen):
            raise core.error(f"got {event!r} after Finish({self.outcome!r}), allowed: nothing more")
        if core.state.phase is Phase.NEW and not isinstance(event, Started | SuspendRequested):
            raise core.error(f"got {event!r} before Started, which must be the first event")
        return handler(core, event)

    @property
    def finished(self) -> bool:
        """Whether Finish was returned."""
        return self._core.state.phase is Phase.FINISHED

    @property
    def outcome(self) -> str:
        """The outcome in Finish: 'done', 'failed-dnns', 'suspended' or 'profiled'; empty before."""
        return self._core.state.outcome

    @property
    def rates(self) -> RateTable:
        """All rates known so far, to be saved for the next run."""
        return self._core.state.all_rates()

    @property
    def plan(self) -> RoundPlan | None:
        """The round that runs, or that a suspension interrupted."""
        return self._core.state.plan

    @property
    def settings(self) -> ScheduleSettings:
        """The settings with the schedule of now: nothing in them is left open."""
        return self._core.settings

    @property
    def forgotten(self) -> tuple[str, ...]:
        """Live DNNs that may use GPUs again that they had dropped, because the hosts have changed."""
        return self._core.forgotten

    @property
    def too_wide(self) -> tuple[str, ...]:
        """Live DNNs that may have fewer GPUs now than in the interrupted round, which therefore ends."""
        return self._core.too_wide

    @property
    def events(self) -> tuple[Event, ...]:
        """The bounded event log; `replay(*ensemble.origin, ensemble.events)` leads to the same state."""
        return self._core.log.events

    @property
    def num_dropped_events(self) -> int:
        """Events that the log dropped because one round was longer than its bound; 0: it is complete."""
        return self._core.log.num_dropped

    @property
    def origin(self) -> tuple[tuple[DnnSpec, ...], Cluster, ScheduleSettings, RateTable, ResumeState]:
        """Where the event log starts."""
        core = self._core
        return (core.specs, core.cluster, core.given, core.origin_rates, core.origin_resume)

    @property
    def state(self) -> EnsembleState:
        """The state itself, for tests and reports; do not change it."""
        return self._core.state

    def idle_slots(self) -> IdleSlots | None:
        """Slots that are idle in the round that runs although DNNs wait, and why; None if there are none."""
        return idle_slots(self._core)

    def would_do_the_same(self, schedule: Schedule) -> bool:
        """Whether this schedule, which differs in delta, would have led to the same rounds so far."""
        return self._core.would_do_the_same(schedule)

    def skip_passes(self, dnn_ids: Sequence[str], number: int) -> None:
        """Let groups that train the same pass be this many passes further, for simulations; see `skipping`.

        Raises:
            ControlError: if something would be decided in these passes.
        """
        skip_passes(self._core, dnn_ids, number)

    def resume_state(self) -> ResumeState:
        """What the next run needs to know about the schedule.

        While groups train, their checkpoints are older than this: a caller that may die replaces `dnns` by
        what it reads from the checkpoints. After Finish it is exact.
        """
        return self._core.resume_state()

    def snapshot(self) -> dict[str, Any]:
        """The state as plain JSON values, for status.json; see `snapshot.render`."""
        return snapshot.render(self._core.state)

    def check_invariants(self) -> None:
        """Raise ControlError if the state contradicts itself."""
        for problem in snapshot.problems(self._core.state, self._core.cluster):
            raise self._core.error(f"internal error: {problem}")


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


def _on_started(core: Core, event: Started) -> list[Instruction]:
    s = core.state
    if s.phase is not Phase.NEW:
        raise core.error(f"got a second Started in phase {s.phase}")
    for dnn in s.dnns.values():
        if not dnn.is_live:
            continue
        if dnn.state is not DnnState.WAITING:
            core.move(dnn, DnnState.WAITING)
        if rounds.is_inside_pass(dnn.position, core.settings.num_positions):
            continue
        # Its checkpoint is whole and says that it has converged, whatever the earlier run recorded.
        decision = evaluate(dnn.spec.stop, dnn.history)
        if decision is not None:
            core.move(dnn, DnnState.DONE)
            dnn.detail, dnn.position = decision.detail, None
    return profile_or_train(core)


def _on_preprocessing_measured(core: Core, event: PreprocessingMeasured) -> list[Instruction]:
    if not 0.0 < event.samples_per_s < float("inf"):
        raise core.error(f"got {event!r}, allowed: a rate > 0")
    core.state.preprocessing_samples_per_s = event.samples_per_s
    return []


def _on_checkpoint_written(core: Core, event: CheckpointWritten) -> list[Instruction]:
    dnn = core.dnn_of(event)
    if not dnn.is_live:
        return []
    group = core.state.groups.get(event.dnn_id)
    if group is None or group.is_profiling or event.epoch > dnn.epochs:
        raise core.unexpected(event, dnn, f"a checkpoint of a DNN in the round, of epoch <= {dnn.epochs}")
    if event.epoch < dnn.epochs or not group.leaving:
        return []  # written during the round; later events may have overtaken it
    group.is_saved = True
    if group.leaving is Leaving.SUSPENDED:
        # A stop may come between the end of its last pass and the decision on it.
        is_inside = rounds.is_inside_pass(event.position, core.settings.num_positions)
        decision = None if is_inside else evaluate(dnn.spec.stop, dnn.history)
        if decision is None:
            dnn.position = event.position
        else:
            core.move(dnn, DnnState.DONE)
            dnn.detail = decision.detail
    elif group.leaving in STATE_WHEN_SAVED:
        core.move(dnn, STATE_WHEN_SAVED[group.leaving])
        dnn.detail = group.detail
    return []


def _on_group_left(core: Core, event: GroupLeft) -> list[Instruction]:
    s, dnn = core.state, core.dnn_of(event)
    group = s.groups.get(event.dnn_id)
    if group is None:
        raise core.unexpected(event, dnn, "GroupLeft of a DNN that has a group")
    if dnn.is_live:
        if group.is_profiling and not group.is_measured:
            raise core.unexpected(event, dnn, "RateMeasured or DnnFailed before GroupLeft")
        if not group.is_profiling and not group.leaving:
            raise core.unexpected(event, dnn, "GroupLeft of a group that was asked to leave, or failed")
        if not group.is_profiling and not group.is_saved:
            raise core.unexpected(event, dnn, f"CheckpointWritten of epoch {dnn.epochs} before GroupLeft")
        core.move(dnn, STATE_WHEN_LEFT[group.leaving])
    del s.groups[event.dnn_id]
    if group.leaving is Leaving.PAUSED and s.plan is not None:  # an interrupted round continues without it
        s.plan = without(s.plan, {event.dnn_id}) or s.plan
    if s.phase is Phase.ROUND and core.is_independent:
        return fill_gpus(core)
    if s.groups:
        return []
    if s.phase is Phase.PROFILING:
        return profile_or_train(core)
    assert s.plan is not None
    stop = StopStream(s.plan.index, bool(s.suspend_reason), continues=s.interrupted is not None)
    if not s.suspend_reason or not any(other.state is DnnState.SUSPENDED for other in s.dnns.values()):
        s.plan = None
    return [stop, *next_round(core)]


def _on_dnn_failed(core: Core, event: DnnFailed) -> list[Instruction]:
    dnn = core.dnn_of(event)
    if not dnn.is_live:
        return []
    core.move(dnn, DnnState.FAILED)
    dnn.cause, dnn.detail, dnn.position = event.cause or "error", event.detail, None
    group = core.state.groups.get(event.dnn_id)
    if group is not None:
        group.leaving, group.training_pass = Leaving.FAILED, None
    return decide(core)


def _on_suspend_requested(core: Core, event: SuspendRequested) -> list[Instruction]:
    s = core.state
    if s.phase is Phase.FINISHED or s.suspend_reason:
        return []
    s.suspend_reason = event.reason or "asked to stop"
    if s.phase is Phase.CHOOSING:
        return core.finish()  # no group trains; the answer is no longer needed
    staying = s.staying_groups() if s.phase is Phase.ROUND else []
    for group in staying:
        core.move(s.dnns[group.dnn_id], DnnState.LEAVING)
        group.leaving = Leaving.SUSPENDED
    return [SuspendGroups(tuple(group.dnn_id for group in staying))] if staying else []


_HANDLERS: dict[type[Event], Callable[[Core, Any], list[Instruction]]] = {
    Started: _on_started,
    RateMeasured: on_rate_measured,
    PreprocessingMeasured: _on_preprocessing_measured,
    EpochDone: on_epoch_done,
    CheckpointWritten: _on_checkpoint_written,
    GroupLeft: _on_group_left,
    DnnFailed: _on_dnn_failed,
    ScheduleChosen: on_schedule_chosen,
    SuspendRequested: _on_suspend_requested,
}
