"""How long a run of any kind takes on an allocation, and how much of it is used: for `plan` and `submit`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcbal.cli.options import Answer
from hpcbal.config import RunConfig
from hpcbal.kinds import KINDS
from hpcbal.planning.allocation import (
    AllocationPrediction,
    largest_keeping,
    largest_tried,
    side_by_side,
)
from hpcbal.planning.calibration import EarlierRun, RunKey, read_runs, runs_in


@dataclass(frozen=True, slots=True)
class Sources:
    """Sources that a prediction may use beside the configuration.

    Attributes:
        path: the configuration's file.
        profile: a profile.json, or an output directory that holds one; None: `find_rates` looks for it.
        samples: samples of the dataset; None: known for hpcbal's own datasets.
        open_data: whether datasets and apps may be opened, which runs their code.
        memory: bytes of a node; None: not known.
        learn_from: output directories of earlier runs, or directories of them; empty: the user's file of all.
    """

    path: Path
    profile: Path | None = None
    samples: int | None = None
    open_data: bool = False
    memory: int | None = None
    learn_from: tuple[Path, ...] = ()


def sources_of(args: argparse.Namespace) -> Sources:
    """Return what the command line of `plan` gives."""
    learn_from = tuple(args.learn_from or ())
    return Sources(args.config, args.profile, args.samples, args.open_data, args.memory, learn_from)


def earlier_runs(config: RunConfig, sources: Sources, warn: Callable[[str], None]) -> list[EarlierRun]:
    """Return the earlier runs of the kind of this configuration, the latest last.

    Raises:
        InputError: if a directory in `sources.learn_from` holds no run.
    """
    key = RunKey.of(config)
    return runs_in(sources.learn_from, key, warn) if sources.learn_from else read_runs(key, warn)


def prediction_of(
    config: RunConfig,
    sources: Sources,
    *,
    num_nodes: int,
    slots_per_node: int,
    warn: Callable[[str], None],
    runs: Sequence[EarlierRun] | None = None,
) -> AllocationPrediction:
    """Predict a run of any kind on so many nodes, with the band that earlier runs of its kind give.

    Args:
        config: the configuration.
        sources: what may be used beside it.
        num_nodes, slots_per_node: the allocation; of jobs on parameter servers, slots are their ranks beside
            rank 0.
        warn: takes warnings.
        runs: earlier runs; None: they are read.

    Raises:
        InputError: nothing can be predicted; the message says what to give.
    """
    earlier = earlier_runs(config, sources, warn) if runs is None else runs
    predicted, num_slots = KINDS[config.kind].predicted(config, sources, num_nodes, slots_per_node)
    return AllocationPrediction.of(predicted, num_nodes, num_slots, earlier)


def largest_that_keeps(
    config: RunConfig,
    sources: Sources,
    *,
    use: float,
    slots_per_node: int,
    warn: Callable[[str], None],
) -> AllocationPrediction:
    """Return the largest allocation whose slots are busy for at least the share `use`, 0..1.

    A warning says so if not even one node keeps it; then it is one node.

    Raises:
        InputError: as `prediction_of`.
    """
    earlier = earlier_runs(config, sources, warn)

    def prediction(num_nodes: int) -> AllocationPrediction:
        size = {"num_nodes": num_nodes, "slots_per_node": slots_per_node}
        return prediction_of(config, sources, **size, warn=warn, runs=earlier)

    found = largest_tried(prediction, use)
    if found.busy is None or found.busy < use:
        busy = "not known" if found.busy is None else f"{found.busy:.0%}"
        warn(f"--use {use:g}: one node is the least, and how busy its slots are is {busy}")
    return found


def compared(
    config: RunConfig,
    sources: Sources,
    sizes: Sequence[int],
    *,
    use: float | None,
    slots_per_node: int | None,
    warn: Callable[[str], None],
) -> Answer:
    """Return the answer of `plan --gpus`: several numbers of slots side by side.

    Args:
        sizes: numbers of slots.
        use: the largest allocation is chosen that keeps this share busy, 0..1; None: none is chosen.
        slots_per_node: slots of a node; None: those of the configuration, else all on one node.
    """
    from hpcbal.planning.ensemble_plan import nodes_for

    earlier = earlier_runs(config, sources, warn)
    per_node = slots_per_node or config.slots.per_node
    predictions = []
    for size in sizes:
        num_nodes, each = nodes_for(size, per_node if isinstance(per_node, int) else size)
        allocation = {"num_nodes": num_nodes, "slots_per_node": each}
        predictions.append(prediction_of(config, sources, **allocation, warn=warn, runs=earlier))
    chosen = None if use is None else largest_keeping(predictions, use)
    if use is not None and chosen is None:
        warn(f"--use {use:g}: none of these allocations keeps its slots so busy")
    values: dict[str, Any] = {
        "name": config.name,
        "kind": config.kind,
        "use": use,
        "allocations": [each.to_dict() | {"chosen": each is chosen} for each in predictions],
    }

    def lines() -> list[str]:
        text = [f"{config.name}: {KINDS[config.kind].what}", "", *side_by_side(predictions, chosen), ""]
        text.append(f"{predictions[0].band.title}: {predictions[0].band.why}")
        if use is not None and chosen is not None:
            text.append(f"*: the largest of them whose slots are busy for {use:.0%} of their time")
        return text

    return Answer(values, lines)
