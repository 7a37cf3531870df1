"""Simulate a run of an ensemble with the machine of a real run, and bound the makespan from below."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hpcbal.cluster.layout import Cluster
from hpcbal.control.ensemble import Ensemble
from hpcbal.control.paradigms import AUTO, ELASTIC
from hpcbal.control.progress import DnnProgress, ResumeState, ScheduleSettings
from hpcbal.control.states import TERMINAL, DnnState
from hpcbal.errors import InputError
from hpcbal.events.ensemble import ChooseSchedule, RoundPlan, ScheduleChosen
from hpcbal.events.members import DnnSpec, StopRule
from hpcbal.garbage import without_garbage_collection
from hpcbal.policies.rates import RateTable
from hpcbal.simulator.balancing import Balancing, GroupRates, Pace, RatePace
from hpcbal.simulator.choosing import Outset, choose_schedule
from hpcbal.simulator.costs import Costs
from hpcbal.simulator.executor import EnsembleSimulation
from hpcbal.simulator.learning_curves import Curves, EvidenceOf
from hpcbal.simulator.pass_model import PassModel
from hpcbal.simulator.record import DnnRecord, RoundRecord, SimulatedRun


def lower_bound(
    epochs: Mapping[str, int],
    num_slots: int,
    max_slots_per_dnn: int | None,
    rates: RateTable,
    passes: PassModel,
) -> float:
    """The larger of: all work done without loss on all slots, and the longest DNN at its best rate.

    The work of a DNN is its time on one slot, because rates grow more slowly than the number of slots; if
    some measured rate per slot is higher than on one slot, the highest one counts. Costs, preprocessing and
    the whole number of passes in a round are ignored, so the bound holds for any schedule.

    Args:
        epochs: epochs that each DNN has to train; DNNs that are done are left out.
        num_slots: M, >= 1.
        max_slots_per_dnn: None: M.
        rates: rates of all these DNNs.
        passes: determines the length of an epoch.

    Returns: seconds; 0 without DNNs.
    """
    if not epochs:
        return 0.0
    most = num_slots if max_slots_per_dnn is None else min(num_slots, max_slots_per_dnn)
    matrix = rates.matrix(list(epochs), most)
    per_slot = (matrix / np.arange(1, most + 1)).max(axis=1)
    samples = np.array(list(epochs.values())) * passes.seconds(1.0)  # as if each took one second
    work, longest = samples / per_slot, samples / matrix.max(axis=1)
    return max(math.fsum(work.tolist()) / num_slots, float(longest.max()))


MOST_EPOCHS = 100_000
MOST_EPOCHS_OF_A_DNN = 2_000
"""A simulated epoch takes about 0.1 ms, and longer the more epochs its DNN had before."""


def simulate(
    specs: Sequence[DnnSpec],
    cluster: Cluster,
    settings: ScheduleSettings,
    rates: RateTable,
    passes: PassModel,
    *,
    epochs: Mapping[str, int] | None = None,
    known: RateTable | None = None,
    costs: Costs | None = None,
    kept_per_added_node: float = 1.0,
    balancing: Balancing | None = None,
    curves: Curves | None = None,
    evidence: EvidenceOf | None = None,
    resume: ResumeState | None = None,
    keep_events: bool = False,
) -> SimulatedRun:
    """Run an ensemble to its end in virtual time.

    The `Ensemble` of a real run takes the decisions, so there is no second copy of a schedule; only time is
    simulated. The same arguments give the same result.

    Args:
        specs: the DNNs, in the order of the config.
        cluster: the allocation.
        settings: how to schedule; `num_positions` is taken from `passes`. Schedules are chosen, and DNNs are
            given slots, as in a run that knows max_epochs, and that DNNs of `epochs` may end before.
        rates: real rates of the DNNs on the fewest nodes that hold their slots; at least on one slot each,
            the rest by Eq. 5.
        passes: samples of a pass, and how they flow.
        epochs: epochs after which each DNN converges, >= 1; a DNN that is missing trains to its stop rule's
            max_epochs.
        known: rates that the run knows when it starts; it profiles others that it needs, if the settings
            allow that. None: `rates`.
        costs: None: no costs.
        kept_per_added_node: share of its rate that a group keeps for each added node; see `GroupRates`.
        balancing: unlike slots, and how steps are split over them. The rate of a DNN on one slot is then that
            of a slot of speed 1, and rates on more slots are not used. None: all slots are alike.
        curves: the monitored metric of each epoch, for a pruning rule; None: all DNNs are alike to it, so the
            first ones of the config win.
        evidence: the predictions after each epoch, for a pruning rule that compares them; None: such a rule
            prunes no DNN.
        resume: the progress of an earlier run.
        keep_events: whether `SimulatedRun.events` is filled.

    Raises:
        InputError: if a number of epochs is out of range or belongs to no DNN, or `kept_per_added_node` is
            out of range.
        PolicyError: if the rate of a DNN on one slot is missing.
        HpcbalError: raised by `Ensemble`.
    """
    start = resume or ResumeState()
    converging = _specs_with_epochs(specs, epochs or {}, start)
    preprocessing = passes.preprocessing_samples_per_s
    if preprocessing is not None:
        start = replace(start, preprocessing_samples_per_s=preprocessing)
    settings = replace(settings, num_positions=passes.num_positions)
    by_name = {spec.dnn_id: spec for spec in converging}
    if balancing is None:
        pace: Pace = RatePace(GroupRates(rates, cluster, kept_per_added_node))
    else:
        from hpcbal.simulator.step_pace import StepPace  # with the policies, which plans do not need

        pace = StepPace(by_name, rates, passes, balancing)
    ensemble = Ensemble(
        converging,
        cluster,
        replace(settings, max_proposals=0),  # nobody proposes here: the DNNs are those that there are
        rates if known is None else known,
        None if start is None else replace(start, num_open=None),
    )

    paradigms = [] if settings.paradigm == AUTO else [settings.paradigm]

    unknown = tuple(replace(each, ends_early=by_name[each.dnn_id].ends_early) for each in specs)

    def choose(asked: ChooseSchedule) -> ScheduleChosen:
        outset = replace(Outset.of(ensemble, passes, costs or Costs()), specs=unknown)
        choice = choose_schedule(outset, asked)
        paradigms.append(choice.schedule.paradigm)
        return choice

    executor = EnsembleSimulation(
        ensemble,
        by_name,
        pace,
        passes,
        costs or Costs(),
        curves=curves,
        evidence=evidence,
        choose=choose,
        keep_events=keep_events,
    )
    with without_garbage_collection():
        outcome = executor.run()
    left = _epochs_left(converging, start)
    if settings.prune is not None:  # which epochs are trained depends on the schedule, too
        left = {name: ensemble.state.dnns[name].epochs - _begun_epochs(start, name) for name in left}
    best = rates if balancing is None else balancing.fastest(rates, cluster.num_slots)
    return SimulatedRun(
        makespan_s=executor.now_s,
        outcome=outcome,
        num_slots=cluster.num_slots,
        rounds=tuple(sorted(executor.rounds, key=lambda record: record.plan.index)),
        dnns=_dnn_records([*left], executor.rounds),
        spans=tuple(executor.spans),
        events=tuple(executor.events),
        profiling_s=executor.profiled_until_s,
        scheduling_s=executor.scheduling_s,
        lower_bound_s=lower_bound(left, cluster.num_slots, settings.max_slots_per_dnn, best, passes),
        num_events=executor.num_events,
        num_epochs=sum(left.values()),
        num_pruned=sum(dnn.state is DnnState.PRUNED for dnn in ensemble.state.dnns.values()),
        paradigms=tuple(dict.fromkeys(paradigms)),
    )


@dataclass(frozen=True, slots=True)
class RemainingRun:
    """The predicted rest of a run.

    Attributes:
        remaining_s: seconds until it ends.
        num_rounds: rounds that will begin; 0: DNNs train without rounds.
        done_s: by DNN, seconds from now until it is done.
        busy: share of the slots' time until then in which they train, 0..1.
        start_s: by DNN that is not done, seconds from now until it first has slots.
    """

    remaining_s: float
    num_rounds: int
    done_s: Mapping[str, float]
    busy: float = 0.0
    start_s: Mapping[str, float] = field(default_factory=dict)


def predict(
    specs: Sequence[DnnSpec],
    cluster: Cluster,
    settings: ScheduleSettings,
    rates: RateTable,
    passes: PassModel,
    *,
    costs: Costs | None = None,
    resume: ResumeState | None = None,
) -> RemainingRun | None:
    """Predict how long a run still takes, at most: every DNN trains to its max_epochs, and none is pruned.

    Args:
        rates: the known rates; measuring further rates that the settings require counts as profiling.
        Others: as for `simulate`.

    Returns: None while some remaining DNN has no known rate even on one slot.
    """
    start = resume or ResumeState()
    left = [spec for spec in specs if not _is_over(start, spec.dnn_id)]
    if not all(rates.is_measured(spec.dnn_id, 1) for spec in left):
        return None
    if settings.prune is not None and settings.paradigm == ELASTIC:
        settings = replace(settings, max_slots_per_dnn=1)  # as beside the rule
    settings = replace(settings, prune=None)
    run = simulate(specs, cluster, settings, rates, passes, costs=costs, resume=resume)
    done_s = {dnn.dnn_id: dnn.end_s for dnn in run.dnns}
    start_s = {dnn.dnn_id: dnn.start_s for dnn in run.dnns}
    return RemainingRun(run.makespan_s, run.num_rounds, done_s, run.busy, start_s)


def _epochs_left(specs: Sequence[DnnSpec], start: ResumeState) -> dict[str, int]:
    """Epochs to train, for DNNs that are not done, pruned or failed."""
    return {
        spec.dnn_id: spec.stop.max_epochs - _begun_epochs(start, spec.dnn_id)
        for spec in specs
        if not _is_over(start, spec.dnn_id)
    }


def _begun_epochs(start: ResumeState, dnn_id: str) -> int:
    """Epochs that an earlier run has trained."""
    return start.dnns.get(dnn_id, DnnProgress()).epochs


def _is_over(start: ResumeState, dnn_id: str) -> bool:
    return start.dnns.get(dnn_id, DnnProgress()).state in TERMINAL


def _specs_with_epochs(
    specs: Sequence[DnnSpec], epochs: Mapping[str, int], start: ResumeState
) -> list[DnnSpec]:
    """The DNNs with stop rules that end their training after the given epochs, whatever the metrics."""
    unknown = sorted(set(epochs) - {spec.dnn_id for spec in specs})
    if unknown:
        raise InputError(f"epochs: the ensemble has no DNN {', '.join(unknown)}")
    result = []
    for spec in specs:
        count = epochs.get(spec.dnn_id, spec.stop.max_epochs)
        if not 1 <= count <= spec.stop.max_epochs:
            raise InputError(
                f"epochs of {spec.dnn_id}: got {count}, allowed: 1 to its max_epochs {spec.stop.max_epochs}"
            )
        # A DNN that was interrupted where it may already have converged trains one more epoch.
        trained = _begun_epochs(start, spec.dnn_id)
        if not _is_over(start, spec.dnn_id):
            count = max(count, trained + 1)
        rule = StopRule(monitor=spec.stop.monitor, mode=spec.stop.mode, max_epochs=count)
        ends_early = spec.dnn_id in epochs or not spec.has_known_length
        result.append(replace(spec, stop=rule, ends_early=ends_early))
    return result


def _dnn_records(dnn_ids: Sequence[str], rounds: Sequence[RoundRecord]) -> tuple[DnnRecord, ...]:
    """Sum up the rounds of each DNN."""
    own: dict[str, list[RoundRecord]] = {dnn_id: [] for dnn_id in dnn_ids}
    for record in rounds:
        for dnn_id in record.running_s:
            own[dnn_id].append(record)
    return tuple(_dnn_record(dnn_id, records) for dnn_id, records in own.items() if records)


def _dnn_record(dnn_id: str, records: Sequence[RoundRecord]) -> DnnRecord:
    def num_slots(plan: RoundPlan) -> int:
        return next(len(group.slots) for group in plan.groups if group.dnn_id == dnn_id)

    return DnnRecord(
        dnn_id,
        start_s=min(record.start_s for record in records),
        end_s=max(record.start_s + record.running_s[dnn_id] for record in records),
        running_s=sum(record.running_s[dnn_id] for record in records),
        slot_seconds=sum(record.running_s[dnn_id] * num_slots(record.plan) for record in records),
    )


def too_long(specs: Sequence[DnnSpec]) -> str | None:
    """Return why simulating these DNNs up to their max_epochs takes too long; None if it does not."""
    longest = max(specs, key=lambda spec: spec.stop.max_epochs)
    most = longest.stop.max_epochs
    if most > MOST_EPOCHS_OF_A_DNN:
        of = f"{longest.dnn_id} has a stop.max_epochs of {most}"
        return f"{of}, and at most {MOST_EPOCHS_OF_A_DNN} epochs of a DNN are simulated"
    total = sum(spec.stop.max_epochs for spec in specs)
    if total > MOST_EPOCHS:
        return f"stop.max_epochs of all DNNs is {total} in sum, and at most {MOST_EPOCHS} are simulated"
    return None
