"""A configuration as a scenario for the simulator: its DNNs with the known rates."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpcbal.config import EnsembleConfig, add_import_roots
from hpcbal.config.balance import balances_of
from hpcbal.config.scheduling import settings_of, specs_of
from hpcbal.errors import InputError
from hpcbal.events.members import DnnSpec
from hpcbal.planning.cache import KeptFacts, known_hit_rate
from hpcbal.planning.ensemble_plan import known_slots_per_node
from hpcbal.planning.rates import PlanRates, find_rates
from hpcbal.simulator.balancing import Balancing, varied_rates
from hpcbal.simulator.costs import Costs
from hpcbal.simulator.pass_model import PassModel
from hpcbal.simulator.scenario import Scenario, Workload


def scenario_of_config(
    config: EnsembleConfig,
    path: Path,
    *,
    profile: Path | None = None,
    slots_per_node: int | None = None,
    num_samples: int | None = None,
    epochs: float | Path = 1.0,
    rate_deviation: float = 0.0,
    kept_per_added_node: float = 1.0,
    hit_rate: float | None = None,
) -> Scenario:
    """Add to a configuration everything known about its rates and its data.

    Args:
        config: the ensemble.
        path: its file.
        profile: source of the rates; None: `find_rates` looks for them.
        slots_per_node: None: `slots.per_node`.
        num_samples: samples of the dataset; None: known for hpcbal's own datasets, any other is opened, which
            runs its code.
        epochs: each DNN converges after a share of max_epochs drawn between this value and 1; or as it did in
            the run with this results.csv (a DNN that is not in it trains to max_epochs). Decisions know the
            length of DNNs that train to max_epochs and have no rule to stop earlier, as those of a run do.
        rate_deviation: relative deviation of each DNN's rates over the seeds; see `varied_rates`.
        kept_per_added_node: share of its rate that a group keeps for each added node; see `GroupRates`.
        hit_rate: see `PassModel`; None: that of `dataplane.cache_bytes` if the dataset was opened, else 0.

    Raises:
        InputError: if rates or data are not available.
    """
    per_node = known_slots_per_node(config, slots_per_node)
    rates = find_rates(config, per_node, profile, command=str(path))
    facts = known_facts(config) if num_samples is None else facts_of_size(config, num_samples)
    if facts is None:
        add_import_roots(path)
        facts = facts_of_data(config)
    if hit_rate is not None:
        facts = replace(facts, hit_rate=hit_rate)
    passes = pass_model(config, facts, rates.preprocessing_samples_per_s)
    specs = specs_of(config)

    fixed = _epochs_of_results(epochs, specs) if isinstance(epochs, Path) else None
    least_share = epochs if isinstance(epochs, float) else 1.0

    def draw(seed: int) -> Workload:
        rng = random.Random(seed)
        drawn = {
            spec.dnn_id: max(1, round(rng.uniform(least_share, 1.0) * spec.stop.max_epochs))
            for spec in specs
            if least_share < 1.0 or not spec.has_known_length
        }
        table = varied_rates(rates.table, rate_deviation, seed)
        return Workload(specs, table, drawn if fixed is None else fixed)

    return Scenario(
        name=config.name,
        slots_per_node=per_node,
        slots=(per_node,),
        draw=draw,
        settings=settings_of(config, passes.num_positions),
        passes=passes,
        costs=known_costs(config, rates) or Costs(),
        max_preprocessors=lambda num_slots: preprocessor_ranks(config, -(-num_slots // per_node)),
        kept_per_added_node=kept_per_added_node,
        balancing=balancing_of(config),
    )


def balancing_of(config: EnsembleConfig) -> Balancing | None:
    """Unlike slots of the emulated backend, and how steps are split over them; None: all are alike.

    Models of speeds are not fitted in a plan: the last speed stands in for them.
    """
    if not config.backend.is_emulated or not config.backend.workers:
        return None
    return Balancing(
        workers=config.backend.workers,
        policies={name: balance.policy for name, balance in balances_of(config).items()},
        max_samples_per_slot=config.balance.max_samples_per_slot,
    )


def _epochs_of_results(path: Path, specs: Sequence[DnnSpec]) -> dict[str, int]:
    from hpcbal.telemetry.views.results import read_results

    trained = {row.name: row.epochs for row in read_results(path)}
    if not trained.keys() & {spec.dnn_id for spec in specs}:
        raise InputError(f"--epochs {path}: has none of the ensemble's DNNs; give its results.csv")
    most = {spec.dnn_id: spec.stop.max_epochs for spec in specs}
    ends = {name: min(max(1, trained.get(name, epochs)), epochs) for name, epochs in most.items()}
    return {
        spec.dnn_id: ends[spec.dnn_id]
        for spec in specs
        if ends[spec.dnn_id] < spec.stop.max_epochs or not spec.has_known_length
    }


def known_costs(config: EnsembleConfig, rates: PlanRates) -> Costs | None:
    """Costs of starting and saving from an earlier run, else from profiling; None: unknown."""
    return _costs_of_run(Path(config.output.dir)) or (Costs(start_s=rates.start_s) if rates.start_s else None)


def _costs_of_run(output: Path) -> Costs | None:
    """Costs that the run in this directory measured; most plans are made before the first run."""
    if not output.is_dir():
        return None
    from hpcbal.simulator.measured_costs import measured_costs
    from hpcbal.telemetry.files.run_directory import RunDirectory
    from hpcbal.telemetry.ledger.file import read_ledger

    ledger = RunDirectory(output).ledger
    if not ledger.is_file():
        return None
    return measured_costs((entry.unix_s, entry.line) for entry in read_ledger(ledger))


@dataclass(frozen=True, slots=True)
class PassFacts:
    """Size of a dataset.

    Attributes:
        num_train, num_validation: samples of a pass; with folds, these validate all training samples, too.
        ring_samples: samples that the ring holds.
        kept: what a cache of decoded samples keeps; None: unknown.
        hit_rate: share of the samples that the cache of one node holds, 0..1; 0 if it is unknown.
    """

    num_train: int
    num_validation: int
    ring_samples: int
    kept: KeptFacts | None = None
    hit_rate: float = 0.0


def facts_of_size(config: EnsembleConfig, num_samples: int) -> PassFacts:
    """Derive the facts from the number of samples; the ring is assumed to hold two blocks, its minimum.

    A dataset with its own split may differ.
    """
    num_validation = round(num_samples * config.data.validation_fraction)
    num_test = round(num_samples * config.data.test_fraction)
    return _drawn_facts(config, num_samples - num_validation - num_test, num_validation)


def _drawn_facts(config: EnsembleConfig, num_train: int, num_validation: int) -> PassFacts:
    if config.data.max_samples is not None:
        from hpcbal.data.split import numbers_drawn  # not at the top: it takes long to load

        num_train, num_validation = numbers_drawn(num_train, num_validation, config.data.max_samples)
    if config.num_folds:  # each pass has the training samples once more, to validate members on them
        num_validation += num_train
    return PassFacts(num_train, num_validation, 2 * config.dataplane.block_samples)


def known_facts(config: EnsembleConfig) -> PassFacts | None:
    """Facts about datasets that come with hpcbal and always have the same size; None for others."""
    if config.data.validation is not None:
        return None
    match config.data.dataset:
        case "hpcbal.data:digits":
            return facts_of_size(config, 1797)
        case "hpcbal.data:fashion_mnist":
            num_test = round(60_000 * config.data.test_fraction)
            return _drawn_facts(config, 60_000 - num_test, 10_000)
    return None


def facts_of_data(config: EnsembleConfig, bytes_per_node: int | None = None) -> PassFacts:
    """Facts from the dataset itself; opens it, which runs the user's code.

    Args:
        bytes_per_node: memory of a node; None: unknown.
    """
    from hpcbal.data.source import open_source
    from hpcbal.dataplane.stream import StreamSpec

    source = open_source(config)
    stream = StreamSpec.of_source(source, config.dataplane)
    ring_samples = stream.num_cells * stream.block_samples
    kept = KeptFacts.of(config, source)
    hit_rate = known_hit_rate(config, kept, bytes_per_node)
    return PassFacts(source.num_train, source.num_positions - source.num_train, ring_samples, kept, hit_rate)


def pass_model(
    config: EnsembleConfig, facts: PassFacts, preprocessing_samples_per_s: float | None, num_nodes: int = 1
) -> PassModel:
    """Model of a pass of this configuration.

    Args:
        config: the ensemble.
        facts: size of its dataset.
        preprocessing_samples_per_s: rate of one preprocessor; None: unknown.
        num_nodes: nodes whose caches hold samples for each other.
    """
    return PassModel(
        num_train=facts.num_train,
        num_validation=facts.num_validation,
        ring_samples=facts.ring_samples,
        preprocessing_samples_per_s=preprocessing_samples_per_s,
        profile_batches=config.schedule.profiling.max_batches,
        hit_rate=min(1.0, num_nodes * facts.hit_rate),
    )


def preprocessor_ranks(config: EnsembleConfig, num_nodes: int) -> int:
    """Number of ranks that preprocess if every node gets the same number of ranks."""
    # The scheduler's rank exists only on the first node; on other nodes that rank preprocesses too.
    return (config.slots.preprocessors_per_node + 1) * num_nodes - 1
