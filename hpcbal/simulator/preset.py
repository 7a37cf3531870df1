"""Scenarios that come with hpcbal: ensembles drawn from what papers report."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import numpy as np

from hpcbal.control.progress import ScheduleSettings
from hpcbal.errors import InputError
from hpcbal.events.ensemble import Delta
from hpcbal.events.members import DnnSpec, StopRule
from hpcbal.policies.rates import RateTable
from hpcbal.simulator.balancing import varied_rates
from hpcbal.simulator.costs import Costs
from hpcbal.simulator.pass_model import PassModel
from hpcbal.simulator.scenario import Published, Scenario, Workload

_FOLDER = "presets"
_SECTIONS = ("machine", "ensemble", "passes", "schedule", "costs")
_NUM_DRAWS_OF_SHAPE = 100_000


@dataclass(frozen=True, slots=True)
class EnsembleLaw:
    """The distribution from which an ensemble is drawn.

    Attributes:
        num_dnns: number of DNNs, >= 2.
        batch_size: batch size of every DNN.
        min_rate, max_rate: samples/s on one slot of the slowest and of the fastest DNN.
        samples_per_epoch: samples that every DNN reads.
        mean_run_s, deviation_run_s: length of training on one slot, over the DNNs.
        mean_epochs, deviation_epochs: epochs to convergence, over the DNNs; independent of the rates.
        kept_inside_node: share of the rate per slot that is kept for each slot added on the same node.
        kept_across_nodes: the same for each slot added on another node, and for each node that a group spans
            beyond the fewest that hold it.
        rate_deviation: deviation of a DNN's rates over the seeds; see `varied_rates`.
        max_profiled_slots: rates are given for 1..this many slots; Eq. 5 gives the rest.
        order_seed: order in which the rates are assigned to the DNNs; the same for all seeds.
    """

    num_dnns: int
    batch_size: int
    min_rate: float
    max_rate: float
    samples_per_epoch: int
    mean_run_s: float
    deviation_run_s: float
    mean_epochs: float
    deviation_epochs: float
    kept_inside_node: float
    kept_across_nodes: float
    rate_deviation: float
    max_profiled_slots: int
    order_seed: int

    def sample_time_s(self) -> tuple[float, float]:
        """Mean and deviation, over the DNNs, of the seconds per sample on one slot.

        A run lasts epochs * samples * seconds per sample. Epochs and seconds are independent, so
        1 + CV_run^2 = (1 + CV_epochs^2) * (1 + CV_time^2). To the microsecond.

        Raises:
            InputError: if the epochs alone spread the runs more than the given deviation.
        """
        mean = self.mean_run_s / (self.mean_epochs * self.samples_per_epoch)
        spread_of_epochs = 1.0 + (self.deviation_epochs / self.mean_epochs) ** 2
        squared = (1.0 + (self.deviation_run_s / self.mean_run_s) ** 2) / spread_of_epochs - 1.0
        if squared <= 0.0:
            raise InputError(
                f"runs of {self.mean_run_s} s with deviation {self.deviation_run_s} s cannot result from "
                f"epochs of {self.mean_epochs} with deviation {self.deviation_epochs}; lower deviation_epochs"
            )
        return round(mean, 6), round(round(mean, 6) * math.sqrt(squared), 6)

    def single_slot_rates(self) -> list[float]:
        """Rates on one slot, samples/s, shape (num_dnns,); the same for all seeds.

        Seconds per sample are quantiles of a beta distribution between the two extremes, with the mean and
        deviation of `sample_time_s`; the outermost two are the extremes themselves.
        """
        mean_s, deviation_s = self.sample_time_s()
        low, high = 1.0 / self.max_rate, 1.0 / self.min_rate
        mean = (mean_s - low) / (high - low)
        variance = (deviation_s / (high - low)) ** 2
        concentration = mean * (1.0 - mean) / variance - 1.0
        if not (0.0 < mean < 1.0 and concentration > 0.0):
            raise InputError(
                f"no distribution between {low} and {high} s per sample has mean {mean_s} and "
                f"deviation {deviation_s}"
            )
        rng = np.random.default_rng(self.order_seed)
        draws = rng.beta(mean * concentration, (1.0 - mean) * concentration, _NUM_DRAWS_OF_SHAPE)
        share = np.quantile(draws, (np.arange(self.num_dnns) + 0.5) / self.num_dnns)
        times = low + (high - low) * share
        times[0], times[-1] = low, high
        return [1.0 / float(time) for time in times[rng.permutation(self.num_dnns)]]

    def rate_factor(self, num_slots: int, slots_per_node: int) -> float:
        """Rate on `num_slots` divided by the rate on one, on the fewest nodes that hold them."""
        across = max(0, num_slots - slots_per_node)
        inside = num_slots - 1 - across
        return num_slots * self.kept_inside_node**inside * self.kept_across_nodes**across

    @property
    def kept_per_added_node(self) -> float:
        """See `GroupRates`: one slot more is added across nodes, and one fewer inside a node."""
        return min(1.0, self.kept_across_nodes / self.kept_inside_node)

    def draw(self, seed: int, slots_per_node: int) -> Workload:
        """The ensemble of a seed: its epochs, and how its rates deviate from the distribution's."""
        rng = np.random.default_rng(seed)
        drawn = rng.normal(self.mean_epochs, self.deviation_epochs, self.num_dnns)
        names = [f"dnn-{i:0{len(str(self.num_dnns - 1))}d}" for i in range(self.num_dnns)]
        epochs = {name: max(1, round(float(value))) for name, value in zip(names, drawn, strict=True)}
        measured = {
            name: {
                m: rate * self.rate_factor(m, slots_per_node) for m in range(1, self.max_profiled_slots + 1)
            }
            for name, rate in zip(names, self.single_slot_rates(), strict=True)
        }
        specs = tuple(
            DnnSpec(name, self.batch_size, StopRule(max_epochs=count)) for name, count in epochs.items()
        )
        rates = varied_rates(RateTable(measured, slots_per_node), self.rate_deviation, seed)
        return Workload(specs, rates, epochs)


def preset_names() -> list[str]:
    """Names that `load_preset` knows."""
    files = resources.files(__package__).joinpath(_FOLDER).iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def load_preset(name: str, overrides: Sequence[str] = ()) -> Scenario:
    """Load a scenario by name.

    Args:
        name: one of `preset_names`.
        overrides: `section.key=value`, such as "schedule.alpha=0.9", for values of the preset.

    Raises:
        InputError: if there is no such preset or key, or a value is out of range.
    """
    if name not in preset_names():
        raise InputError(f"preset: got {name!r}, allowed: {', '.join(preset_names())}")
    import yaml

    text = resources.files(__package__).joinpath(_FOLDER, f"{name}.yaml").read_text(encoding="utf-8")
    values = yaml.safe_load(text)
    for override in overrides:
        _override(values, override, yaml.safe_load)
    return _scenario(name, values)


def _override(values: dict[str, Any], override: str, parse: Callable[[str], Any]) -> None:
    path, _, text = override.partition("=")
    section, _, key = path.strip().partition(".")
    known = [f"{s}.{k}" for s in _SECTIONS for k, old in values[s].items() if isinstance(old, int | float)]
    if f"{section}.{key}" not in known:
        raise InputError(f"--set {override}: unknown key of the preset, allowed: {', '.join(known)}")
    old, value = values[section][key], parse(text)
    if not isinstance(value, int | float) or isinstance(value, bool) != isinstance(old, bool):
        allowed = "true or false" if isinstance(old, bool) else "a number"
        raise InputError(f"--set {override}: got {text!r}, allowed: {allowed}")
    values[section][key] = float(value) if isinstance(old, float) else value


def _scenario(name: str, values: Mapping[str, Any]) -> Scenario:
    passes = PassModel(**values["passes"])
    law = EnsembleLaw(samples_per_epoch=passes.num_positions, **values["ensemble"])
    machine, schedule, published = values["machine"], values["schedule"], values["published"]
    per_slot = machine["preprocessors_per_slot"]
    law.single_slot_rates()  # raises now if there is no such distribution
    slots_per_node = machine["slots_per_node"]

    def draw(seed: int) -> Workload:
        workload = law.draw(seed, slots_per_node)
        return replace(workload, known=RateTable({}, slots_per_node)) if schedule["profile"] else workload

    return Scenario(
        name=name,
        slots_per_node=slots_per_node,
        slots=tuple(machine["slots"]),
        draw=draw,
        settings=ScheduleSettings(
            num_positions=passes.num_positions,
            delta=Delta(absolute=schedule["delta"]),
            alpha=schedule["alpha"],
            profile=schedule["profile"],
            max_profile_slots=law.max_profiled_slots,
            checkpoint_every_pass=False,
        ),
        passes=passes,
        costs=Costs(**values["costs"]),
        max_preprocessors=lambda num_slots: max(1, math.floor(per_slot * num_slots)),
        kept_per_added_node=law.kept_per_added_node,
        published=Published(published["source"], published["paradigm"], published["makespan_s"]),
    )
