"""Profiling: waves of groups that measure the missing rates."""

from __future__ import annotations

from hpcbal.control.core import Core
from hpcbal.control.paradigms import needs_rates
from hpcbal.control.profiling import measures_in_rounds, missing_jobs, next_wave, place_wave
from hpcbal.control.round_phase import next_round
from hpcbal.control.state import Group
from hpcbal.control.states import DnnState, Phase
from hpcbal.errors import InputError
from hpcbal.events.ensemble import Instruction, RateMeasured, StartProfiling


def profile_or_train(core: Core) -> list[Instruction]:
    """No group is left: start the next profiling wave, or the first round once all rates are known.

    Raises:
        InputError: if a rate on one GPU is not known and the settings do not allow measuring it.
    Source: [FLEET] Alg. 1, line 1; App. B.3.
    """
    s = core.state
    s.rates, s.fresh_rates = s.all_rates(), {}
    if s.suspend_reason or not s.live_ids():
        return core.finish()
    if not needs_rates(core.given.paradigm):
        return next_round(core)
    if not core.settings.profile:
        unknown = [dnn_id for dnn_id in s.live_ids() if not s.rates.is_measured(dnn_id, 1)]
        if unknown:
            raise InputError(
                f"the rates of {', '.join(unknown)} on 1 slot are not known and profiling is off; "
                "give them in the rate table or let hpcbal profile"
            )
        return next_round(core)
    if measures_in_rounds(core.settings, core.cluster.num_gpus):
        return next_round(core)
    jobs = missing_jobs(s.live_ids(), list(s.dnns), s.rates, core.cluster, core.settings, core.batch_sizes)
    if not jobs:
        return next_round(core)
    s.phase = Phase.PROFILING
    groups = place_wave(next_wave(jobs, core.cluster.num_gpus), core.cluster)
    for group in groups:
        core.move(s.dnns[group.dnn_id], DnnState.PROFILING)
        s.groups[group.dnn_id] = Group(group.dnn_id, group.gpus, is_profiling=True)
        s.note_built(group.dnn_id, group.gpus)
    return [StartProfiling(groups)]


def on_rate_measured(core: Core, event: RateMeasured) -> list[Instruction]:
    """A group of the running wave, or of a round, has measured its rate."""
    s, dnn = core.state, core.dnn_of(event)
    if dnn.state is DnnState.FAILED:
        return []
    group = s.groups.get(event.dnn_id)
    if group is None or group.is_measured:
        raise core.unexpected(event, dnn, "one RateMeasured of a DNN in a profiling wave or a round")
    if event.num_gpus != len(group.gpus) or not 0.0 < event.samples_per_s < float("inf"):
        raise core.unexpected(event, dnn, f"a rate > 0 on {len(group.gpus)} slots")
    group.is_measured = True
    if not group.is_profiling:
        s.rates = s.rates.with_measurement(event.dnn_id, event.num_gpus, event.samples_per_s)
        return []
    s.fresh_rates[event.dnn_id, event.num_gpus] = event.samples_per_s
    return []
