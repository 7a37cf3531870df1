"""Scenarios that come with hpcbal: ensembles of papers, drawn from what the papers tell of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

from hpcbal.control import DnnSpec, ScheduleSettings, StopRule
from hpcbal.errors import InputError
from hpcbal.policies import Delta, RateTable
from hpcbal.simulator.costs import Costs
from hpcbal.simulator.pass_model import PassModel
from hpcbal.simulator.scenario import Published, Scenario, Workload

_FOLDER = "presets"
_NUM_DRAWS_OF_SHAPE = 100_000


@dataclass(frozen=True, slots=True)
class EnsembleLaw:
    """From which an ensemble is drawn.

    Attributes:
        num_dnns: how many, >= 2.
        batch_size: of every DNN.
        min_rate, max_rate: samples/s on one GPU of the slowest and of the fastest.
        mean_time_s, deviation_time_s: seconds per sample on one GPU, over the DNNs.
        mean_epochs, deviation_epochs: to convergence, over the DNNs; independent of the rates.
        kept_inside_node: share of the rate per GPU that is kept with each GPU added on the same node.
        kept_across_nodes: likewise with each GPU added on another node.
        max_profiled_gpus: rates are drawn for 1..this many GPUs; Eq. 5 tells the rest.
        order_seed: in which the rates are dealt to the DNNs; the same for all seeds.
    """

    num_dnns: int
    batch_size: int
    min_rate: float
    max_rate: float
    mean_time_s: float
    deviation_time_s: float
    mean_epochs: float
    deviation_epochs: float
    kept_inside_node: float
    kept_across_nodes: float
    max_profiled_gpus: int
    order_seed: int

    def single_gpu_rates(self) -> list[float]:
        """Rates on one GPU, samples/s, shape (num_dnns,); the same for all seeds.

        Seconds per sample are the quantiles of a beta distribution between the two extremes with the given
        mean and deviation; the outermost two are the extremes themselves.
        """
        low, high = 1.0 / self.max_rate, 1.0 / self.min_rate
        mean = (self.mean_time_s - low) / (high - low)
        variance = (self.deviation_time_s / (high - low)) ** 2
        concentration = mean * (1.0 - mean) / variance - 1.0
        if not (0.0 < mean < 1.0 and concentration > 0.0):
            raise InputError(
                f"no distribution between {low} and {high} s per sample has mean {self.mean_time_s} and "
                f"deviation {self.deviation_time_s}"
            )
        rng = np.random.default_rng(self.order_seed)
        draws = rng.beta(mean * concentration, (1.0 - mean) * concentration, _NUM_DRAWS_OF_SHAPE)
        share = np.quantile(draws, (np.arange(self.num_dnns) + 0.5) / self.num_dnns)
        times = low + (high - low) * share
        times[0], times[-1] = low, high
        return [1.0 / float(time) for time in times[rng.permutation(self.num_dnns)]]

    def rate_factor(self, num_gpus: int, gpus_per_node: int) -> float:
        """Rate on `num_gpus` over that on one."""
        across = max(0, num_gpus - gpus_per_node)
        inside = num_gpus - 1 - across
        return num_gpus * self.kept_inside_node**inside * self.kept_across_nodes**across

    def draw(self, seed: int, gpus_per_node: int) -> Workload:
        """The ensemble: its rates are the same for all seeds, its epochs are drawn."""
        rng = np.random.default_rng(seed)
        drawn = rng.normal(self.mean_epochs, self.deviation_epochs, self.num_dnns)
        names = [f"dnn-{i:0{len(str(self.num_dnns - 1))}d}" for i in range(self.num_dnns)]
        epochs = {name: max(1, round(float(value))) for name, value in zip(names, drawn, strict=True)}
        measured = {
            name: {m: rate * self.rate_factor(m, gpus_per_node) for m in range(1, self.max_profiled_gpus + 1)}
            for name, rate in zip(names, self.single_gpu_rates(), strict=True)
        }
        specs = tuple(
            DnnSpec(name, self.batch_size, StopRule(max_epochs=count)) for name, count in epochs.items()
        )
        return Workload(specs, RateTable(measured, gpus_per_node), epochs)


def preset_names() -> list[str]:
    """Names that `load_preset` knows."""
    files = resources.files(__package__).joinpath(_FOLDER).iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def load_preset(name: str) -> Scenario:
    """A scenario by its name.

    Raises:
        InputError: there is none of that name.
    """
    if name not in preset_names():
        raise InputError(f"preset: got {name!r}, allowed: {', '.join(preset_names())}")
    import yaml

    text = resources.files(__package__).joinpath(_FOLDER, f"{name}.yaml").read_text(encoding="utf-8")
    return _scenario(name, yaml.safe_load(text))


def _scenario(name: str, values: Mapping[str, Any]) -> Scenario:
    law = EnsembleLaw(**values["ensemble"])
    machine, schedule, published = values["machine"], values["schedule"], values["published"]
    passes = PassModel(**values["passes"])
    per_gpu = machine["preprocessors_per_gpu"]
    return Scenario(
        name=name,
        gpus_per_node=machine["gpus_per_node"],
        gpus=tuple(machine["gpus"]),
        draw=lambda seed: law.draw(seed, machine["gpus_per_node"]),
        settings=ScheduleSettings(
            num_positions=passes.num_positions,
            delta=Delta(absolute=schedule["delta"]),
            alpha=schedule["alpha"],
            profile=schedule["profile"],
            checkpoint_every_pass=False,
        ),
        passes=passes,
        costs=Costs(**values["costs"]),
        max_preprocessors=lambda num_gpus: max(1, math.floor(per_gpu * num_gpus)),
        published=Published(published["source"], published["paradigm"], published["makespan_s"]),
    )
