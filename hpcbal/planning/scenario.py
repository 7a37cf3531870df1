"""A configuration as a scenario for the simulator: its DNNs with the rates that are known."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcbal.config import EnsembleConfig, add_import_roots, load_config
from hpcbal.config.balance import balances_of
from hpcbal.config.scheduling import settings_of, specs_of
from hpcbal.control import DnnSpec
from hpcbal.errors import InputError
from hpcbal.planning.ensemble_plan import gpus_per_node as slots_per_node
from hpcbal.planning.rates import PlanRates, find_rates
from hpcbal.simulator import (
    Balancing,
    Costs,
    PassModel,
    Scenario,
    Workload,
    measured_costs,
    varied_rates,
)
from hpcbal.telemetry import read_ledger, read_results
from hpcbal.telemetry.files.run_directory import RunDirectory


def scenario_of_config(
    path: Path,
    overrides: Sequence[str],
    *,
    profile: Path | None = None,
    gpus_per_node: int | None = None,
    num_samples: int | None = None,
    epochs: float | Path = 1.0,
    rate_deviation: float = 0.0,
    kept_per_added_node: float = 1.0,
    warn: Callable[[str], None] | None = None,
) -> Scenario:
    """Read a configuration and what is known of its rates and its data.

    Args:
        path, overrides: as given on the command line.
        profile: where rates are from; None: as `find_rates` looks for them.
        gpus_per_node: None: `slots.per_node`.
        num_samples: of the dataset; None: as known of hpcbal's own, else it is opened, which runs its code.
        epochs: DNNs converge after a share of max_epochs that is drawn from this one to 1; or as they did in
            the run whose results.csv this is (max_epochs, if they are not in it).
        rate_deviation: of each DNN's rates over the seeds; see `varied_rates`.
        kept_per_added_node: share of its rate that a group keeps for each node more; see `GroupRates`.
        warn: as of `load_config`.

    Raises:
        InputError: the configuration is wrong, or rates or data cannot be had.
    """
    config = load_config(path, overrides, warn=warn)
    per_node = slots_per_node(config, gpus_per_node)
    rates = find_rates(config, per_node, profile, command=str(path))
    facts = known_facts(config) if num_samples is None else facts_of_size(config, num_samples)
    if facts is None:
        add_import_roots(path)
        facts = facts_of_data(config)
    passes = pass_model(config, facts, rates.preprocessing_samples_per_s)
    specs = specs_of(config)

    fixed = _epochs_of_results(epochs, specs) if isinstance(epochs, Path) else None
    least_share = epochs if isinstance(epochs, float) else 1.0

    def draw(seed: int) -> Workload:
        rng = random.Random(seed)
        drawn = {
            spec.dnn_id: max(1, round(rng.uniform(least_share, 1.0) * spec.stop.max_epochs)) for spec in specs
        }
        table = varied_rates(rates.table, rate_deviation, seed)
        return Workload(specs, table, drawn if fixed is None else fixed)

    return Scenario(
        name=config.name,
        gpus_per_node=per_node,
        gpus=(per_node,),
        draw=draw,
        settings=settings_of(config, passes.num_positions),
        passes=passes,
        costs=known_costs(config, rates) or Costs(),
        max_preprocessors=lambda num_gpus: preprocessor_ranks(config, -(-num_gpus // per_node)),
        kept_per_added_node=kept_per_added_node,
        balancing=balancing_of(config),
    )


def balancing_of(config: EnsembleConfig) -> Balancing | None:
    """Unlike GPUs of the emulated backend, and how steps are split over them; None: all are alike.

    A predictor that is fitted while training is not: the moving average stands in for it.
    """
    if config.backend.name != "emulated" or not config.backend.workers:
        return None
    return Balancing(
        workers=config.backend.workers,
        policies={name: balance.policy for name, balance in balances_of(config).items()},
        max_samples_per_gpu=config.balance.max_samples_per_gpu,
    )


def _epochs_of_results(path: Path, specs: Sequence[DnnSpec]) -> dict[str, int]:
    trained = {row.name: row.epochs for row in read_results(path)}
    if not trained.keys() & {spec.dnn_id for spec in specs}:
        raise InputError(f"--epochs {path}: tells of none of the ensemble's DNNs; give its results.csv")
    return {
        spec.dnn_id: min(max(1, trained.get(spec.dnn_id, spec.stop.max_epochs)), spec.stop.max_epochs)
        for spec in specs
    }


def known_costs(config: EnsembleConfig, rates: PlanRates) -> Costs | None:
    """What starting and saving cost in an earlier run, else what profiling tells; None: unknown."""
    ledger = RunDirectory(Path(config.output.dir)).ledger
    costs = None
    if ledger.is_file():
        costs = measured_costs((entry.unix_s, entry.line) for entry in read_ledger(ledger))
    return costs or (Costs(start_s=rates.start_s) if rates.start_s else None)


@dataclass(frozen=True, slots=True)
class PassFacts:
    """How large a dataset is.

    Attributes:
        num_train, num_validation: samples of a pass.
        ring_samples: samples that the ring holds.
    """

    num_train: int
    num_validation: int
    ring_samples: int


def facts_of_size(config: EnsembleConfig, num_samples: int) -> PassFacts:
    """From the number of samples alone: the ring is taken to hold two blocks, the least that it may.

    A dataset that has a split of its own may differ.
    """
    num_validation = round(num_samples * config.data.validation_fraction)
    return PassFacts(num_samples - num_validation, num_validation, 2 * config.dataplane.block_samples)


def known_facts(config: EnsembleConfig) -> PassFacts | None:
    """For datasets that come with hpcbal and have always the same size; None for others."""
    match config.data.dataset:
        case "hpcbal.data:digits":
            return facts_of_size(config, 1797)
        case "hpcbal.data:fashion_mnist":
            return PassFacts(60_000, 10_000, 2 * config.dataplane.block_samples)
    return None


def facts_of_data(config: EnsembleConfig) -> PassFacts:
    """From the dataset itself, which is opened: that runs the user's code."""
    from hpcbal.data.source import open_source
    from hpcbal.dataplane.stream import StreamSpec

    source = open_source(config)
    stream = StreamSpec.of_source(source, config.dataplane)
    return PassFacts(source.num_train, source.num_validation, stream.num_slots * stream.block_samples)


def pass_model(
    config: EnsembleConfig, facts: PassFacts, preprocessing_samples_per_s: float | None
) -> PassModel:
    """What a pass of this configuration is; the last argument is what one preprocessor makes, if known."""
    return PassModel(
        num_train=facts.num_train,
        num_validation=facts.num_validation,
        ring_samples=facts.ring_samples,
        preprocessing_samples_per_s=preprocessing_samples_per_s,
        profile_batches=config.schedule.profiling.max_batches,
    )


def preprocessor_ranks(config: EnsembleConfig, num_nodes: int) -> int:
    """Ranks that preprocess if every node gets the same number of ranks."""
    # The scheduler's rank exists on the first node only; on the others that rank preprocesses too.
    return (config.slots.preprocessors_per_node + 1) * num_nodes - 1
