"""A configuration as a scenario for the simulator: its DNNs with the rates that are known."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from hpcbal.cli.ensemble_plan import gpus_per_node as slots_per_node
from hpcbal.cli.plan_rates import find_rates
from hpcbal.config import RunConfig, add_import_roots, load_config
from hpcbal.control import DnnSpec, ScheduleSettings
from hpcbal.simulator import Costs, PassModel, Scenario, Workload


def scenario_of_config(
    path: Path,
    overrides: Sequence[str],
    *,
    profile: Path | None = None,
    gpus_per_node: int | None = None,
    num_samples: int | None = None,
    least_epochs_share: float = 1.0,
) -> Scenario:
    """Read a configuration and what is known of its rates and its data.

    Args:
        path, overrides: as given on the command line.
        profile: where rates are from; None: as `find_rates` looks for them.
        gpus_per_node: None: `slots.per_node`.
        num_samples: of the dataset; None: open it, which runs the user's code.
        least_epochs_share: DNNs converge after a share of max_epochs that is drawn from here to 1.

    Raises:
        InputError: the configuration is wrong, or rates or data cannot be had.
    """
    config = load_config(path, overrides)
    per_node = slots_per_node(config, gpus_per_node)
    rates = find_rates(config, per_node, profile, command=str(path))
    if num_samples is None:
        add_import_roots(path)
    passes = pass_model(config, num_samples, rates.preprocessing_samples_per_s)
    specs = tuple(DnnSpec(dnn.name, dnn.batch_size, dnn.stop.rule()) for dnn in config.dnns)

    def draw(seed: int) -> Workload:
        rng = random.Random(seed)
        shares = {spec.dnn_id: rng.uniform(least_epochs_share, 1.0) for spec in specs}
        epochs = {spec.dnn_id: max(1, round(shares[spec.dnn_id] * spec.stop.max_epochs)) for spec in specs}
        return Workload(specs, rates.table, epochs)

    return Scenario(
        name=config.name,
        gpus_per_node=per_node,
        gpus=(per_node,),
        draw=draw,
        settings=schedule_settings(config, passes.num_positions),
        passes=passes,
        costs=Costs(),
        max_preprocessors=lambda num_gpus: preprocessor_ranks(config, -(-num_gpus // per_node)),
    )


def schedule_settings(config: RunConfig, num_positions: int) -> ScheduleSettings:
    """How a run of this configuration schedules."""
    schedule = config.schedule
    is_given = schedule.profiling.rates is not None or config.backend.name == "emulated"
    return ScheduleSettings(
        num_positions=num_positions,
        delta=schedule.delta_rule(),
        alpha=schedule.alpha,
        max_gpus_per_dnn=schedule.max_gpus_per_dnn,
        profile=not is_given,
        max_profile_gpus=schedule.profiling.max_gpus,
        paradigm=schedule.paradigm,
        seed=config.seed,
    )


def pass_model(
    config: RunConfig, num_samples: int | None, preprocessing_samples_per_s: float | None
) -> PassModel:
    """What a pass of this configuration is.

    Args:
        config: the ensemble.
        num_samples: of the dataset; None: the dataset is opened, which also tells how many samples the ring
            holds. Where they are given, it is taken to hold two blocks, the least that it may.
        preprocessing_samples_per_s: what one preprocessor makes, as far as it is known.
    """
    block = config.dataplane.block_samples
    if num_samples is None:
        from hpcbal.data.source import open_source
        from hpcbal.dataplane.stream import StreamSpec

        source = open_source(config)
        num_train, num_validation = source.num_train, source.num_validation
        stream = StreamSpec(
            num_train=num_train,
            num_positions=source.num_positions,
            block_samples=block,
            sample=source.sample_spec,
            label=source.label_spec,
            ring_bytes=config.dataplane.ring_bytes,
        )
        ring_samples = stream.num_slots * block
    else:
        num_validation = round(num_samples * config.data.validation_fraction)
        num_train, ring_samples = num_samples - num_validation, 2 * block
    return PassModel(
        num_train=num_train,
        num_validation=num_validation,
        ring_samples=ring_samples,
        preprocessing_samples_per_s=preprocessing_samples_per_s,
        profile_batches=config.schedule.profiling.max_batches,
    )


def preprocessor_ranks(config: RunConfig, num_nodes: int) -> int:
    """Ranks that preprocess if every node gets the same number of ranks."""
    # The scheduler's rank exists on the first node only; on the others that rank preprocesses too.
    return (config.slots.preprocessors_per_node + 1) * num_nodes - 1
