"""Choose a schedule: replay the rest of the run under each candidate, and take the shortest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpcbal.cluster.layout import Cluster
from hpcbal.control.ensemble import Ensemble
from hpcbal.control.prediction import would_do_the_same
from hpcbal.control.progress import DnnProgress, ResumeState, ScheduleSettings
from hpcbal.control.schedules import LEAST_GAIN, choose, first_to_try, next_to_try
from hpcbal.control.states import TERMINAL
from hpcbal.events.ensemble import ChooseSchedule, Schedule, ScheduleChosen, SchedulePrediction
from hpcbal.events.history import Position
from hpcbal.events.members import DnnSpec, StopRule
from hpcbal.garbage import without_garbage_collection
from hpcbal.policies.rates import RateTable
from hpcbal.simulator.balancing import GroupRates, RatePace
from hpcbal.simulator.costs import Costs
from hpcbal.simulator.executor import CUT, EnsembleSimulation, Remaining
from hpcbal.simulator.pass_model import PassModel

ASSUMED_COSTS = Costs(form_s=0.5, checkpoint_s=0.2)
"""Costs of a round in a run, which decides before it can measure them: of two schedules that train equally
fast, the one with fewer rounds is better. They are fixed, so that a repeated run decides alike."""

MOST_EPOCHS = 5_000
"""Epochs in sum that are replayed one by one; of more, several count as one. This bounds the time of a
decision, without a clock that would make it depend on the load of the machine."""

MOST_DNNS = 200
"""Ensembles of more DNNs are large: what cannot gain `LEAST_GAIN` is not tried."""

MOST_EVENTS = 20_000
"""A candidate that forms flotillas is given up after this many events."""

CUT_BEYOND = 1.1
"""A candidate is given up once it is certain to take this many times as long as the best one so far."""


@dataclass(frozen=True, slots=True)
class Outset:
    """Everything that a choice depends on; the same outset gives the same choice.

    Attributes:
        specs: the DNNs; their stop rules say how long they train at most.
        cluster: the allocation.
        settings: the settings of the run; its schedule is replaced by each candidate.
        rates: known rates; at least on one slot of each DNN that is not over.
        passes: samples of a pass, and how they flow.
        costs: what a run spends outside the passes.
        resume: how far the run is.
    """

    specs: tuple[DnnSpec, ...]
    cluster: Cluster
    settings: ScheduleSettings
    rates: RateTable
    passes: PassModel
    costs: Costs
    resume: ResumeState

    @classmethod
    def of(cls, ensemble: Ensemble, passes: PassModel, costs: Costs) -> Outset:
        """The outset of a choice that `ensemble` has asked for.

        Args:
            passes: of now; the rate of preprocessing and the hit rate of the first choice count, see
                `ScheduleChosen`.
        """
        specs, cluster, settings = ensemble.specs, ensemble.cluster, ensemble.given
        choice = ensemble.state.choice
        made = ensemble.state.preprocessing_samples_per_s
        if choice is not None:
            made = choice.preprocessing_samples_per_s
            passes = replace(passes, hit_rate=choice.hit_rate)
        passes = replace(passes, preprocessing_samples_per_s=made)
        return cls(specs, cluster, settings, ensemble.rates, passes, costs, ensemble.resume_state())


def choose_schedule(outset: Outset, asked: ChooseSchedule) -> ScheduleChosen:
    """Answer the state machine's question."""
    found = predict_schedules(outset, asked.candidates, asked.current)
    progress = [outset.resume.dnns.get(spec.dnn_id, DnnProgress()) for spec in outset.specs]
    num_dnns = sum(dnn.state not in TERMINAL for dnn in progress)
    passes = outset.passes
    made = passes.preprocessing_samples_per_s
    return choose(found, asked.current, made, num_dnns, asked.basis, passes.hit_rate)


@without_garbage_collection()
def predict_schedules(
    outset: Outset,
    candidates: Sequence[Schedule],
    current: Schedule | None = None,
    *,
    cut_beyond: float = CUT_BEYOND,
) -> list[SchedulePrediction]:
    """Predict how long the rest of the run takes under each schedule, if every DNN trains to its max_epochs.

    None is pruned in a prediction, because which ones will be is not known.

    Other values of alpha are tried only for the best schedule with one value: alpha matters less than the
    paradigm and delta, and so a decision takes half the time.

    Args:
        candidates: different schedules, at least one.
        current: the schedule until now; None: there is none.
        cut_beyond: see `CUT_BEYOND`, >= 1; no value changes which prediction is the shortest.

    Returns: predictions of the candidates that were tried, in their order.
    Raises:
        PolicyError: if the rate of a DNN on one slot is missing.
    """
    replays = _Replays(_from_now_on(outset), cut_beyond)
    replays.add(first_to_try(candidates, current), candidates)
    replays.add(next_to_try(candidates, replays.found), candidates)
    return [replays.found[schedule] for schedule in candidates if schedule in replays.found]


class _Replays:
    """Replays schedules from one outset, each only as far as it may still be the best.

    Attributes:
        found: predictions so far.
    """

    def __init__(self, outset: Outset, cut_beyond: float) -> None:
        self.found: dict[Schedule, SchedulePrediction] = {}
        self._cut_beyond = cut_beyond
        self._outset = outset
        self._remaining = Remaining(
            outset.specs,
            outset.rates,
            outset.passes,
            outset.cluster.num_slots,
            outset.settings.max_slots_per_dnn,
        )
        self._least_s = math.inf

    def add(self, schedules: Sequence[Schedule], candidates: Sequence[Schedule]) -> None:
        """Predict `schedules`, and those of `candidates` that turn out to lead to the same rounds."""
        for schedule in schedules:
            if schedule not in self.found and not self._is_good_enough:
                self._replay(schedule, candidates)

    @property
    def _is_good_enough(self) -> bool:
        """Whether, in a large ensemble, nothing can be faster than the best one so far by `LEAST_GAIN`."""
        is_large = len(self._outset.specs) > MOST_DNNS
        return is_large and (1.0 - LEAST_GAIN) * self._least_s <= self._remaining.whole_s

    def _replay(self, schedule: Schedule, candidates: Sequence[Schedule]) -> None:
        outset, until_s = self._outset, self._cut_beyond * self._least_s
        settings = outset.settings.under(schedule)
        resume = replace(outset.resume, num_open=0)  # nobody proposes here: the DNNs are those that there are
        ensemble = Ensemble(outset.specs, outset.cluster, settings, outset.rates, resume)
        executor = EnsembleSimulation(
            ensemble,
            {spec.dnn_id: spec for spec in outset.specs},
            RatePace(GroupRates(outset.rates, outset.cluster)),
            outset.passes,
            outset.costs,
            in_memory=outset.resume.kept,
            is_brief=True,
            until_s=until_s,
            remaining=self._remaining,
            most_events=None if schedule.delta is None else MOST_EVENTS,
        )
        is_cut = executor.run() == CUT
        if not is_cut:
            self._least_s = min(self._least_s, executor.now_s)
        time_s = executor.now_s
        if is_cut:  # beyond the limit in time, or in events
            least_s = self._remaining.least_s(ensemble.state)
            time_s = min(until_s, executor.now_s + least_s)
        for other in candidates:
            if other == schedule or (other not in self.found and would_do_the_same(ensemble, other)):
                self.found[other] = SchedulePrediction(other, time_s, len(executor.rounds), is_cut)


def _from_now_on(outset: Outset) -> Outset:
    """The outset as if the run began now, with the DNNs and the epochs that are left.

    A DNN that stopped inside a pass starts that pass again. Between two rounds, no DNN is inside a pass.
    All train to max_epochs, but where the run does not know that, its decisions in a replay do not either.
    Caches are empty, as they are in a run that resumes here: such a run decides alike.
    """
    resume = outset.resume
    left: dict[str, int] = {}
    begun: dict[str, DnnProgress] = {}
    for spec in outset.specs:
        progress = resume.dnns.get(spec.dnn_id, DnnProgress())
        if progress.state in TERMINAL:
            continue
        left[spec.dnn_id] = max(1, spec.stop.max_epochs - progress.epochs)
        if progress.epochs or progress.position is not None:
            begun[spec.dnn_id] = DnnProgress(
                position=Position(0)
            )  # comes before DNNs that were never trained
    merged = max(1, math.ceil(sum(left.values()) / MOST_EPOCHS))
    passes = replace(
        outset.passes,
        num_train=outset.passes.num_train * merged,
        num_validation=outset.passes.num_validation * merged,
        num_merged=merged,
    )
    return replace(
        outset,
        specs=tuple(
            replace(
                spec,
                stop=StopRule(max_epochs=max(1, round(left[spec.dnn_id] / merged))),
                ends_early=not spec.has_known_length,
            )
            for spec in outset.specs
            if spec.dnn_id in left
        ),
        settings=replace(
            outset.settings,
            num_positions=passes.num_positions,
            profile=False,
            checkpoint_every_pass=False,
            rough_placement=True,
            prune=None,
        ),
        passes=passes,
        resume=ResumeState(
            dnns=begun,
            preprocessing_samples_per_s=passes.preprocessing_samples_per_s,
            kept={dnn_id: slots for dnn_id, slots in resume.kept.items() if dnn_id in left},
            left_out=resume.left_out,
        ),
    )
