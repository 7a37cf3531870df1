"""`hpcbal plan` for an ensemble: flotillas, placement, ranks, memory and wall time, before it is queued."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from hpcbal.cli.options import Answer
from hpcbal.cli.planning.prediction import Sources, earlier_runs, sources_of
from hpcbal.cli.planning.text import NO_SIZE, cache_lines, render_plan
from hpcbal.config import EnsembleConfig
from hpcbal.config.checks.warnings import batches_above, check_parts, check_shares, over_limit, told_limit
from hpcbal.config.scheduling import may_limit_to_one_slot, specs_of
from hpcbal.config.submission import with_expected
from hpcbal.control.paradigms import PARADIGMS
from hpcbal.errors import InputError
from hpcbal.planning.allocation import AllocationPrediction, PredictedRun
from hpcbal.planning.cache import planned_cache
from hpcbal.planning.ensemble_plan import known_slots_per_node, make_plan, nodes_for, plan_to_dict
from hpcbal.planning.memory import node_memory
from hpcbal.planning.rates import find_rates
from hpcbal.planning.scenario import PassFacts
from hpcbal.planning.wall_time import (
    PlanForecast,
    choice_to_dict,
    choose_for_plan,
    forecast,
    prune_lines,
    prune_to_dict,
    schedule_for_plan,
)
from hpcbal.simulator.run import too_long


def answer(args: argparse.Namespace, config: EnsembleConfig, warn: Callable[[str], None]) -> Answer:
    """Make the plan."""
    config, notes = with_expected(config)
    for note in notes:
        warn(note)
    num_nodes, per_node = args.nodes, known_slots_per_node(config, args.slots_per_node)
    if args.slots is not None:
        num_nodes, per_node = nodes_for(args.slots, per_node)
    check_shares(config, num_nodes * per_node)
    check_parts(config, num_nodes * per_node)
    facts: PassFacts | None
    try:
        rates = find_rates(config, per_node, args.profile, command=str(args.config))
    except InputError:  # the cache needs no rates
        facts = _facts(config, sources_of(args)) if args.open_data else None
        if facts is not None and facts.kept is not None:
            for line in cache_lines(planned_cache(config, facts.kept, 1, args.memory, num_nodes)):
                warn(line.strip())
        raise
    facts = _facts(config, sources_of(args))
    size = {"num_nodes": num_nodes, "slots_per_node": per_node}
    choice = choose_for_plan(config, rates, facts, **size)
    schedule = schedule_for_plan(config, choice)
    plan = make_plan(config, rates, schedule, cores_per_rank=args.cpus_per_task, **size)
    sizes = {name: len(slots) for f in plan.flotillas for name, slots in f.placement.slots.items()}
    if facts is not None:
        check_parts(config, num_nodes * per_node, facts.num_train)
        if large := batches_above(config, facts.num_train):
            warn(large)
    if over := over_limit(config, sizes, None if facts is None else facts.num_train):
        warn(f"balance.max_samples_per_slot: {told_limit(config.balance.max_samples_per_slot, over)}")
    prediction: PlanForecast | str = NO_SIZE
    if facts is not None:
        prediction = too_long(specs_of(config)) or forecast(config, rates, facts, schedule, **size)
    kept = None if facts is None else facts.kept
    num_writers = max(plan.preprocessors_per_node)
    if config.schedule.paradigm not in PARADIGMS:
        num_writers += plan.cluster.max_slots_per_node
    cache = planned_cache(config, kept, num_writers, args.memory, num_nodes)
    placements = [planned.placement for planned in plan.flotillas]
    cache_bytes, ring_bytes = 0 if cache is None else cache.known_bytes, None
    if kept is not None:
        ring_bytes = kept.ring_bytes
    memory = node_memory(config, placements, plan.cluster, cache_bytes, ring_bytes)
    command = ["hpcbal", "run", str(args.config)]
    overrides = list(args.overrides)
    if config.slots.per_node not in ("auto", per_node):
        overrides.append(f"slots.per_node={per_node}")
    for override in overrides:
        command += ["--set", override]
    values = plan_to_dict(plan, command)
    values["candidates"] = None if choice is None else choice_to_dict(choice)
    values["prune"] = prune_to_dict(config)
    values["forecast"] = None if isinstance(prediction, str) else prediction.to_dict()
    times: AllocationPrediction | None = None
    if isinstance(prediction, PlanForecast):
        simulated = PredictedRun(prediction.wall_time_s, prediction.busy)
        earlier = earlier_runs(config, sources_of(args), warn)
        times = AllocationPrediction.of(simulated, num_nodes, num_nodes * per_node, earlier)
    values["time"] = None if times is None else times.to_dict()
    values["memory_per_node"] = memory.to_dict(args.memory)
    values["cache_per_node"] = None if cache is None else cache.to_dict()
    remarks = [f"rates from {rates.source}"]
    is_on_cpus = not config.backend.is_emulated and config.slots.device != "gpu"
    may_limit = is_on_cpus and may_limit_to_one_slot(config, num_nodes * per_node)
    if may_limit and max(sizes.values(), default=1) > 1:
        remarks.append(
            "the plan has no limit of slots per DNN; a run on CPU slots gives each DNN one slot if ranks "
            "share cores (schedule.max_slots_per_dnn: auto)"
        )

    augmented = [dnn.name for dnn in config.dnns if dnn.augment]
    if augmented and (config.backend.is_emulated or config.schedule.profiling.rates is not None):
        which = augmented[0] if len(augmented) == 1 else f"{len(augmented)} DNNs"
        remarks.append(
            f"augment of {which} runs on the slots that train; its time is not measured, because rates are "
            "given"
        )

    def lines() -> list[str]:
        plan_lines = render_plan(plan, command, prediction, memory, args.memory, choice, cache, times)
        return [*plan_lines, *prune_lines(config)]

    return Answer(values, lines, remarks)


def predicted(
    config: EnsembleConfig, sources: Sources, num_nodes: int, slots_per_node: int
) -> tuple[PredictedRun, int]:
    """Predict a run on so many nodes; returns the number of its slots too; see `prediction_of`."""
    config, _ = with_expected(config)
    rates = find_rates(config, slots_per_node, sources.profile, command=str(sources.path))
    facts = _facts(config, sources)
    problem = NO_SIZE if facts is None else too_long(specs_of(config))
    if facts is None or problem is not None:
        raise InputError(f"{sources.path}: the wall time is not known: {problem}")
    size = {"num_nodes": num_nodes, "slots_per_node": slots_per_node}
    schedule = schedule_for_plan(config, choose_for_plan(config, rates, facts, **size))
    unlimited = config.model_copy(update={"walltime": None})
    found = forecast(unlimited, rates, facts, schedule, **size)
    return PredictedRun(found.wall_time_s, found.busy), num_nodes * slots_per_node


def _facts(config: EnsembleConfig, sources: Sources) -> PassFacts | None:
    from hpcbal.config import add_import_roots
    from hpcbal.planning.scenario import facts_of_data, facts_of_size, known_facts

    if sources.samples is not None:
        return facts_of_size(config, sources.samples)
    if sources.open_data:
        add_import_roots(sources.path)
        return facts_of_data(config, sources.memory)
    return known_facts(config)
