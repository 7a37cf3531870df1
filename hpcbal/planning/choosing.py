"""The schedule that a run of a configuration would choose, and what it is compared with."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from hpcbal.config import EnsembleConfig
from hpcbal.config.scheduling import settings_of, specs_of
from hpcbal.control import Choice, Prediction, ResumeState, Schedule, candidates, choose
from hpcbal.planning.rates import PlanRates
from hpcbal.planning.scenario import PassFacts, pass_model, preprocessor_ranks
from hpcbal.simulator import ASSUMED_COSTS, Outset, cluster_of, predict_schedules

ASSUMED_FACTS = PassFacts(num_train=100_000, num_validation=0, ring_samples=512)
"""Used while the size of the dataset is unknown; then only the order of the predictions has a meaning."""


def choose_for_plan(
    config: EnsembleConfig,
    rates: PlanRates,
    facts: PassFacts | None,
    *,
    num_nodes: int,
    gpus_per_node: int,
) -> Choice | None:
    """Choose as the run does before its first round; None if the configuration gives the schedule.

    Args:
        config: the ensemble.
        rates: rates of all its DNNs.
        facts: size of its dataset; None: unknown.
        num_nodes, gpus_per_node: the planned allocation.
    """
    passes = pass_model(config, facts or ASSUMED_FACTS, rates.preprocessing_samples_per_s)
    settings = settings_of(config, passes.num_positions)
    schedules = candidates(settings)
    if len(schedules) == 1:
        return None
    outset = Outset(
        specs_of(config),
        cluster_of(num_nodes * gpus_per_node, gpus_per_node),
        replace(settings, max_preprocessors=preprocessor_ranks(config, num_nodes)),
        rates.table,
        passes,
        replace(ASSUMED_COSTS, start_s=rates.start_s),
        ResumeState(),
    )
    made = passes.preprocessing_samples_per_s
    return choose(predict_schedules(outset, schedules, cut_beyond=math.inf), None, made)


def schedule_for_plan(config: EnsembleConfig, choice: Choice | None) -> Schedule:
    """The chosen schedule, or the one that the configuration gives."""
    return candidates(settings_of(config, 1))[0] if choice is None else choice.schedule


def choice_to_dict(choice: Choice) -> list[dict[str, Any]]:
    """The candidates as plain values for JSON, the fastest first."""
    return [
        {
            "paradigm": p.schedule.paradigm,
            "delta": None if p.schedule.delta is None else str(p.schedule.delta),
            "alpha": p.schedule.alpha,
            "wall_time_s": p.remaining_s,
            "num_rounds": p.num_rounds,
            "chosen": p.schedule == choice.schedule,
        }
        for p in ranked(choice)
    ]


def ranked(choice: Choice) -> list[Prediction]:
    """The candidates that were tried, the chosen one first, then the fastest."""
    return sorted(
        choice.predictions, key=lambda p: (p.schedule != choice.schedule, p.remaining_s, p.num_rounds)
    )
