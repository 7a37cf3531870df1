"""Translate a configuration into the state machine's terms, for runs, plans and the simulator."""

from __future__ import annotations

from hpcbal.config.balance import balances_of
from hpcbal.config.schema.ensemble import EnsembleConfig
from hpcbal.control.paradigms import AUTO
from hpcbal.control.progress import ScheduleSettings
from hpcbal.control.schedules import PAPER_DELTA
from hpcbal.events.members import DnnSpec


def specs_of(config: EnsembleConfig) -> tuple[DnnSpec, ...]:
    """The DNNs as the state machine describes them."""
    return tuple(
        DnnSpec(dnn.name, dnn.batch_size, dnn.stop.rule(), config.prune.covers(dnn.name))
        for dnn in config.dnns
    )


def settings_of(config: EnsembleConfig, num_positions: int) -> ScheduleSettings:
    """How a run of this configuration schedules, with as many preprocessors as it requests.

    Rates that are given, in a file or for emulation, are not measured.

    Args:
        num_positions: samples of a pass, including validation.
    """
    schedule = config.schedule
    # Parts of the data stay on their slots: one DNN, one group, no stream of its own.
    is_partitioned = config.data.access == "partitioned"
    is_given = schedule.profiling.rates is not None or config.backend.is_emulated
    return ScheduleSettings(
        num_positions=num_positions,
        delta=PAPER_DELTA if is_partitioned and schedule.delta == AUTO else schedule.delta_rule(),
        alpha=schedule.alpha_rule(),
        max_slots_per_dnn=config.slot_limit,
        profile=not is_given,
        max_profile_slots=schedule.profiling.max_slots,
        paradigm="global" if is_partitioned else schedule.paradigm,
        seed=config.seed,
        regroup=config.balance.regroup,
        prune=config.prune.prune_rule(),
        max_proposals=sum(search.num_open for search in config.searches),
    )


def may_limit_to_one_slot(config: EnsembleConfig, num_slots: int) -> bool:
    """Whether `schedule.max_slots_per_dnn: auto` means one slot per DNN on nodes whose slots share cores.

    Steps that are to be split need several slots, and so do few DNNs: each slot has its own cores.
    """
    is_split = config.data.access == "partitioned" or any(
        not balance.policy.splits_evenly for balance in balances_of(config).values()
    )
    return config.schedule.max_slots_per_dnn == "auto" and len(config.dnns) >= num_slots and not is_split
