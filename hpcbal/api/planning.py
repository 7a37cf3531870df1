"""`hpcbal plan` and `hpcbal simulate` from Python."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from hpcbal.api.verbs import (
    ConfigLike,
    arguments_for,
    changes,
    naming_arguments,
    options,
    unchanged_process,
    warn,
)
from hpcbal.cli.main import parsed
from hpcbal.cli.options import Answer


@naming_arguments()
def plan(
    config: ConfigLike,
    *,
    set: Mapping[str, Any] | None = None,
    slots: int | Sequence[int] | None = None,
    nodes: int | str | None = None,
    use: float | None = None,
    slots_per_node: int | None = None,
    cpus_per_task: int | None = None,
    samples: int | None = None,
    open_data: bool = False,
    memory: int | str | None = None,
    profile: str | os.PathLike[str] | None = None,
) -> Answer:
    """Plan a run: which DNNs train together and where, ranks, memory, and how long it takes.

    Args:
        config: a YAML file, or its keys as a dict.
        set: changes by dotted key, such as `{"schedule.alpha": 0.9}`.
        slots, nodes, slots_per_node, cpus_per_task: the size of the allocation; `slots` or `nodes`. Several
            numbers of slots are compared.
        use: with several numbers, or with `nodes="auto"`: the largest allocation is chosen whose slots are
            busy for this share of their time.
        samples: how many the dataset has.
        open_data: whether to open the dataset to find out; runs its code in this process.
        memory: of a node, in bytes or as text such as `256GiB`.
        profile: a profile.json, or an output directory that holds one.

    Returns:
        A dict as `hpcbal plan --json` prints it; `print` shows the text.

    Raises:
        ConfigError: with all problems of the configuration.
        InputError: if an option is wrong.
    """
    from hpcbal.cli.plan import answer

    words = options(
        slots=slots,
        nodes=nodes,
        use=use,
        slots_per_node=slots_per_node,
        cpus_per_task=cpus_per_task,
        samples=samples,
        open_data=open_data,
        memory=memory,
        profile=profile,
    )
    args = arguments_for("plan", config, [*changes(set), *words])
    with unchanged_process():
        return answer(args, warn)


@naming_arguments()
def simulate(
    config: ConfigLike | None = None,
    *,
    set: Mapping[str, Any] | None = None,
    preset: str | None = None,
    slots: int | Sequence[int] | None = None,
    slots_per_node: int | None = None,
    paradigm: str | Sequence[str] | None = None,
    seeds: int | None = None,
    samples: int | None = None,
    epochs: float | str | os.PathLike[str] | None = None,
    rate_deviation: float | None = None,
    kept_per_node: float | None = None,
    cost: Mapping[str, float] | None = None,
    profile: str | os.PathLike[str] | None = None,
    output: str | os.PathLike[str] | None = None,
) -> Answer:
    """Predict how long a run takes, on any numbers of slots and under any schedules.

    Args:
        config: a YAML file, or its keys as a dict; None with `preset`.
        set: changes by dotted key.
        preset: an ensemble from a paper.
        slots: numbers of slots.
        paradigm: names of schedules, or `all`.
        slots_per_node, seeds, samples, epochs, rate_deviation, kept_per_node, cost, profile, output: as the
            options of `hpcbal simulate`; costs in seconds by name.

    Returns:
        A dict as `hpcbal simulate --json` prints it; `print` shows the text.

    Raises:
        ConfigError: with all problems of the configuration.
        InputError: if an option is wrong.
    """
    from hpcbal.cli.simulate import answer

    words = options(
        preset=preset,
        slots=_listed(slots),
        slots_per_node=slots_per_node,
        paradigm=_listed(paradigm),
        seeds=seeds,
        samples=samples,
        epochs=epochs,
        rate_deviation=rate_deviation,
        kept_per_node=kept_per_node,
        cost=cost,
        profile=profile,
        output=output,
    )
    words = [*changes(set), *words]
    args = parsed(["simulate", *words]) if config is None else arguments_for("simulate", config, words)
    with unchanged_process():
        return answer(args, warn)


def _listed(value: Any) -> Any:
    """A tuple of what is a sequence, but no text; other values as they are."""
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
