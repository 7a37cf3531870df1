"""What the parts of the state machine share: the state, its log, and the ways to change a DNN's state."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any

from hpcbal.cluster.layout import Cluster
from hpcbal.control import rounds
from hpcbal.control.candidates import basis_of, candidates
from hpcbal.control.paradigms import INDEPENDENT, PARADIGM_NAMES, needs_rates
from hpcbal.control.profiling import measures_in_rounds
from hpcbal.control.progress import DnnSpec, ResumeState, ScheduleSettings
from hpcbal.control.schedules import AUTO
from hpcbal.control.state import ControlError, Dnn, EnsembleState, subject_of
from hpcbal.control.states import TERMINAL, TRANSITIONS, DnnState, Phase
from hpcbal.errors import ClusterError
from hpcbal.events.ensemble import Event, Finish, Instruction, Schedule, ScheduleChosen, Started
from hpcbal.machines import EventLog
from hpcbal.policies import Delta, FlotillaPlanner, RateTable, order_alone


class Core:
    """The inside of `Ensemble`, with the same arguments and errors.

    Attributes:
        specs, cluster: as given.
        given: the settings as given; parts of the schedule may be left open.
        candidates: the schedules that the settings leave open.
        basis: see `ScheduleChosen`.
        origin_rates, origin_resume: where the event log starts.
        batch_sizes: samples per step, by DNN.
        signed_values: the monitored metric of each epoch, more is better, as far as pruning has read it.
        log: the bounded event log.
        state: everything that changes.
        has_resumed: whether a DNN was stopped inside a pass by an earlier start.
        forgotten: live DNNs that may use GPUs again that they had dropped, because the hosts have changed.
        too_wide: live DNNs that may have fewer GPUs now than in the interrupted round, which therefore ends.
    """

    def __init__(
        self,
        specs: Iterable[DnnSpec],
        cluster: Cluster,
        settings: ScheduleSettings,
        rates: RateTable,
        resume: ResumeState,
    ) -> None:
        self.specs = tuple(specs)
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
        self._check_input()
        self.candidates = candidates(settings)
        self.state = EnsembleState.begin(self.specs, rates, resume)
        self.basis = basis_of(self.specs, self.candidates, settings.max_gpus_per_dnn, cluster)
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
        self.too_wide = self._above_limit(rounds.gpus_of(self.state.interrupted))
        if self.too_wide:
            self.state.interrupted = None
        if self._above_limit(self.state.kept):
            self.state.kept = {}

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
    def is_independent(self) -> bool:
        """Whether each DNN trains alone, without rounds."""
        return self.settings.paradigm == INDEPENDENT

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
                self.cluster.num_gpus,
                delta,
                settings.max_gpus_per_dnn,
                self.batch_sizes,
            )
            self._flotillas = s.rates, delta, planner
        return self._flotillas[2]

    def would_do_the_same(self, schedule: Schedule) -> bool:
        """See `Ensemble.would_do_the_same`."""
        now = self.settings
        if schedule.delta is None or (schedule.paradigm, schedule.alpha) != (now.paradigm, now.alpha):
            return False
        return self._flotillas is not None and self._flotillas[2].gives_same(schedule.delta)

    def waiting_alone(self) -> deque[Dnn]:
        """DNNs in the order in which they train alone, from the first one that waits on; see `fill_gpus`.

        No DNN starts to wait again before the run ends, so the order is made once.
        """
        if self._waiting is None:
            s = self.state
            left = {d: s.dnns[d].spec.stop.max_epochs - s.dnns[d].epochs for d in s.live}
            order = [s.dnns[dnn_id] for dnn_id in order_alone(left, s.rates, self.settings.seed)]
            order.sort(key=lambda dnn: not (dnn.epochs or dnn.position))  # stable
            self._waiting = deque(order)
        while self._waiting and self._waiting[0].state is not DnnState.WAITING:
            self._waiting.popleft()
        return self._waiting

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
        if s.live_ids():
            s.outcome = "suspended" if s.suspend_reason else "profiled"
        else:
            failed = any(dnn.state is DnnState.FAILED for dnn in s.dnns.values())
            s.outcome = "failed-dnns" if failed else "done"
        s.phase = Phase.FINISHED
        return [Finish(s.outcome)]

    def resume_state(self) -> ResumeState:
        """See `Ensemble.resume_state`."""
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
        )

    def bound_log(self) -> None:
        """Between two rounds: start a log that is half full again here, so that it can still be replayed."""
        if self.log.is_half_full:
            self.origin_rates, self.origin_resume = self.state.all_rates(), self.resume_state()
            self.log.restart([Started()])

    def _forget_left_out(self) -> None:
        """Forget all left-out GPUs: the hosts are new. A round that had shrunk for them does not continue."""
        s = self.state
        live_ids = s.live_ids()
        self.forgotten = tuple(d for d in live_ids if d in s.left_out)
        if rounds.is_short(rounds.gpus_of(s.interrupted), s.left_out, live_ids):
            s.interrupted = None
        if rounds.is_short(s.kept, s.left_out, live_ids):
            s.kept = {}
        s.left_out = {}

    def _above_limit(self, gpus: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
        """Live DNNs that would have more GPUs than allowed, if they continued on these."""
        s, limit, batch_sizes = self.state, self.given.max_gpus_per_dnn, self.batch_sizes
        most = {d: size if limit is None else min(size, limit) for d, size in batch_sizes.items()}
        return tuple(d for d in s.live_ids() if d in gpus and len(s.remaining(d, gpus[d])) > most[d])

    def _check_input(self) -> None:
        if self.cluster.num_gpus < 1:
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


def must_measure(core: Core) -> bool:
    """Whether the next round has to measure rates, without which paradigms and choices cannot decide."""
    s = core.state
    return (
        needs_rates(core.given.paradigm)
        and measures_in_rounds(core.settings, core.cluster.num_gpus)
        and not all(s.rates.is_measured(dnn_id, 1) for dnn_id in s.live_ids())
    )
