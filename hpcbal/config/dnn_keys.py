"""Keys of a DNN in sweeps: which ones exist, and which one an unknown key was meant to be."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

from hpcbal.config.schema.dnn import DnnConfig, StopConfig
from hpcbal.config.schema.objective import LossConfig
from hpcbal.config.schema.optimizer import OptimizerConfig
from hpcbal.config.schema.section import Section
from hpcbal.config.source.suggest import nearest

_SECTIONS: dict[str, type[Section]] = {
    "optimizer": OptimizerConfig,
    "stop": StopConfig,
    "loss": LossConfig,
}
_OTHER_NAMES = {"lr": "optimizer.learning_rate", "epochs": "stop.max_epochs"}


def problem_of_swept_key(key: str, arguments: Collection[str] | None) -> str | None:
    """What is wrong with the dotted name of a swept key; None if a DNN has it, or if a value must decide.

    Args:
        arguments: names that `args` of the model may have; None if they are unknown.
    """
    first, _, rest = key.partition(".")
    section = _SECTIONS.get(first)
    if first in DnnConfig.model_fields and (section is None or not rest or rest in section.model_fields):
        return None
    others = [name for name in DnnConfig.model_fields if name not in ("name", "args", *_SECTIONS)]
    sections = [f"{name}.KEY" for name in _SECTIONS]
    meant = meant_in_dnn(key, arguments)
    return f"unknown key{meant}, allowed: args.NAME, {', '.join([*others, *sections])}"


def meant_in_dnn(key: str, arguments: Collection[str] | None) -> str:
    """` (did you mean 'stop.target'?)` for an unknown key of a DNN, or nothing.

    Args:
        key: dotted.
        arguments: names that `args` of the model may have; None if they are unknown. Then a key that is like
            no other is taken for one of them.
    """
    meant = _meant(key, arguments)
    return "" if meant is None else f" (did you mean '{meant}'?)"


def _meant(key: str, arguments: Collection[str] | None) -> str | None:
    first, _, rest = key.partition(".")
    if key in _OTHER_NAMES:
        return _OTHER_NAMES[key]
    if rest and nearest(first, ["args"]) is not None:
        return _argument(rest, arguments)
    if arguments is not None and key in arguments:
        return f"args.{key}"
    by_last = {dotted.rpartition(".")[2]: dotted for dotted in reversed(_known())}
    near = nearest(key.rpartition(".")[2], by_last, cutoff=0.8)
    if near is not None:
        return by_last[near]
    return None if rest else _argument(key, arguments)


def _argument(given: str, arguments: Collection[str] | None) -> str | None:
    """The key of the argument that was meant."""
    name = given if arguments is None else nearest(given, arguments)
    return None if name is None else f"args.{name}"


@cache
def _known() -> tuple[str, ...]:
    """Dotted names of all keys of a DNN but the arguments of its model."""
    keys = [key for key in DnnConfig.model_fields if key not in _SECTIONS]
    return (*keys, *(f"{name}.{key}" for name, section in _SECTIONS.items() for key in section.model_fields))
