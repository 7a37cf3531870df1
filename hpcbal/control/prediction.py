"""The flotillas that are certain before a run, and doors of the state machine that only the simulator uses.

Between two decisions the passes of a round are all alike: the same groups read the same stream at the same
rates. A simulation that knows when the next DNN ends may therefore handle one of these passes and skip the
others. The skipped passes are in every history, but their events are not in the log.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpcbal.cluster.layout import Cluster
from hpcbal.control.elastic import first_groups, first_order, ladders_of
from hpcbal.control.paradigms import ELASTIC, PARADIGMS, View, one_slot_each, started_with
from hpcbal.control.progress import ScheduleSettings
from hpcbal.control.states import Phase
from hpcbal.events.ensemble import Schedule
from hpcbal.events.history import EpochRecord
from hpcbal.events.members import DnnSpec
from hpcbal.policies.flotilla import Flotilla, FlotillaPlanner
from hpcbal.policies.rates import RateTable

if TYPE_CHECKING:
    from hpcbal.control.ensemble import Ensemble


def foreseen_flotillas(
    specs: Sequence[DnnSpec], cluster: Cluster, settings: ScheduleSettings, rates: RateTable
) -> list[Flotilla]:
    """The flotillas that a run will form, as far as it does not depend on which DNN converges first.

    Args:
        specs: the DNNs, none of which was trained; at least one.
        cluster: at least one slot.
        settings: with a schedule that is given or chosen.
        rates: includes the rate of each DNN on one slot.

    Source: [FLEET] Alg. 1 without line 6: all DNNs of a flotilla converge together; Sec. 6.1 for the other
        paradigms.
    """
    names = [spec.dnn_id for spec in specs]
    if settings.paradigm == ELASTIC and settings.prune is None:
        ladders = ladders_of(specs, rates, settings.max_slots_per_dnn, cluster.num_slots)
        groups = first_groups(specs, ladders, settings, cluster.num_slots)
        return [started_with(groups, rates)]
    if settings.paradigm not in PARADIGMS:
        order = first_order({spec.dnn_id: spec.stop.max_epochs for spec in specs}, rates, settings)
        return [one_slot_each(order[: cluster.num_slots], rates)]

    def flotillas() -> FlotillaPlanner:
        assert settings.delta is not None, "a schedule that forms flotillas has a delta"
        sizes = {spec.dnn_id: spec.batch_size for spec in specs}
        most = settings.max_slots_per_dnn
        return FlotillaPlanner(names, rates, cluster.num_slots, settings.delta, most, sizes)

    return PARADIGMS[settings.paradigm].foreseen(View(cluster, settings, rates, flotillas), names)


def would_do_the_same(ensemble: Ensemble, schedule: Schedule) -> bool:
    """Whether a schedule with another delta would have led to the same rounds so far."""
    now, formed = ensemble.settings, ensemble.last_flotillas
    if schedule.delta is None or (schedule.paradigm, schedule.alpha) != (now.paradigm, now.alpha):
        return False
    return formed is not None and formed.gives_same(schedule.delta)


def skip_passes(ensemble: Ensemble, dnn_ids: Sequence[str], number: int) -> None:
    """Let groups be `number` passes further than they are.

    Args:
        dnn_ids: groups that train the same pass: all groups of the round, or one that trains without rounds.
        number: >= 0.

    Raises:
        ControlError: if a pass in between could be decided otherwise than by continuing: a stop rule has more
            than max_epochs or would apply, or some group stays behind.
    """
    s = ensemble.state
    groups = [s.groups[dnn_id] for dnn_id in dnn_ids]
    passes = {group.training_pass for group in groups}
    is_whole = not ensemble.has_rounds or (
        len(groups) == len(s.groups) and s.plan is not None and s.plan.last_pass is None
    )
    if ensemble.settings.prune is not None:
        raise ensemble.error(f"passes of {', '.join(dnn_ids)} cannot be skipped: one of them may be pruned")
    if s.phase is not Phase.ROUND or len(passes) != 1 or None in passes or not is_whole:
        raise ensemble.error(
            f"passes of {', '.join(dnn_ids)} cannot be skipped: not all groups train the same pass"
        )
    for group in groups:
        dnn = s.dnns[group.dnn_id]
        rule = dnn.spec.stop
        if rule.patience is not None or rule.target is not None or dnn.epochs + number >= rule.max_epochs:
            raise ensemble.error(
                f"{number} passes of {group.dnn_id} cannot be skipped: it may converge in one of them"
            )
    for group in groups:
        assert group.training_pass is not None
        dnn, first = s.dnns[group.dnn_id], group.training_pass
        metrics = {dnn.spec.stop.monitor: math.nan}
        begun = dnn.epochs
        dnn.history += [EpochRecord(begun + 1 + i, first + i, metrics, math.nan) for i in range(number)]
        group.training_pass, group.reported_pass = first + number, group.reported_pass + number
        s.next_pass = max(s.next_pass, first + number + 1)
        if ensemble.has_rounds:
            s.pass_index = first + number
