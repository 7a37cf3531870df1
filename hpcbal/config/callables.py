"""The contract of the callables that a configuration names: what hpcbal passes, and what `args` may add.

One place for `validate`, which reads signatures from source files, and for a run, which has the callables
themselves.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from inspect import Parameter, Signature

from hpcbal.config.source.meant import did_you_mean

_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_BY_KEYWORD = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_MAX_SHOWN = 4
_PAGE = "docs/your-own-model-and-data.md"


@dataclass(frozen=True, slots=True)
class Contract:
    """How hpcbal calls one kind of callable.

    Attributes:
        what: the kind, for messages.
        passed: names of the arguments that hpcbal passes by position, in order.
        words: for each of these, a word in the names that authors of models give to it.
    """

    what: str
    passed: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


MODEL = Contract("a model", ("input_shape", "num_classes"), ("shape", "class"))
DATASET = Contract("a dataset")
APP = Contract("an app", ("source",), ("",))
"""The call of the app of a parameter-server job."""
SCHEDULE = Contract("a schedule of learning rates", ("step", "steps_per_epoch"), ("", ""))
"""A function; a class gets its `args` only."""
SCHEDULE_OF_STEP = Contract("a schedule of learning rates", ("step",), ("",))
"""A function that cannot take the steps of an epoch besides its `args`: it gets the step only."""
CALLBACK = Contract("a callback", ("end",), ("",))
"""A function; a class gets its `args` only."""
PER_SAMPLE = Contract("a loss or metric", ("labels", "outputs"), ("", ""))
"""A function; a class gets its `args` only."""
OPTIMIZER = Contract("an optimizer", ("params",), ("param",))
OPERATION = Contract("an operation", ("sample", "rng"), ("sample", "rng"))
"""Likewise."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """One way in which a callable or its `args` breaks the contract.

    Attributes:
        text: for people.
        key: the argument in `args` that is wrong; None if it is something else.
        about_args: whether `args` is wrong; otherwise it is the callable.
    """

    text: str
    key: str | None = None
    about_args: bool = True


def misfits(path: str, signature: Signature, given: Collection[str], contract: Contract) -> list[Misfit]:
    """How a call `path(*passed, **args)` would fail, by the signature alone.

    Args:
        path: import path of the callable.
        signature: its signature, without `self`.
        given: names of its `args`.
        contract: what hpcbal passes itself.
    """
    parameters = list(signature.parameters.values())
    if not _takes_passed(parameters, contract):
        return [Misfit(_refusal(path, parameters, contract), about_args=False)]
    taken = _taken(parameters, contract)
    known = [p.name for p in parameters if p.kind in _BY_KEYWORD and p.name not in taken]
    is_open = any(p.kind is Parameter.VAR_KEYWORD for p in parameters)
    found = [
        Misfit(
            f"{path} has no argument '{name}'{did_you_mean(name, known)}, "
            f"allowed: {', '.join(known) or 'none'}",
            name,
        )
        for name in given
        if name not in known and (name in taken or not is_open)
    ]
    needed = [
        p.name
        for p in parameters
        if p.default is Parameter.empty
        and p.kind in (*_BY_POSITION, Parameter.KEYWORD_ONLY)
        and p.name not in taken
        and p.name not in given
    ]
    if needed:
        found.append(Misfit(f"{path} needs the argument {', '.join(needed)}"))
    return found


def names_of_args(signature: Signature, contract: Contract) -> tuple[str, ...] | None:
    """The names that `args` may have; None if they may be any."""
    parameters = list(signature.parameters.values())
    if any(p.kind is Parameter.VAR_KEYWORD for p in parameters):
        return None
    taken = _taken(parameters, contract)
    return tuple(p.name for p in parameters if p.kind in _BY_KEYWORD and p.name not in taken)


def _taken(parameters: list[Parameter], contract: Contract) -> list[str]:
    """The names of the parameters that get what hpcbal passes by position."""
    return [p.name for p in parameters if p.kind in _BY_POSITION][: len(contract.passed)]


def _takes_passed(parameters: list[Parameter], contract: Contract) -> bool:
    """Whether the first parameters can be meant for what hpcbal passes.

    A parameter with a default is a choice of the author, such as a width, unless its name shows otherwise. A
    parameter with a name of the contract must be at its position.
    """
    names = [p.name for p in parameters]
    positional = [p for p in parameters if p.kind in _BY_POSITION]
    is_open = any(p.kind is Parameter.VAR_POSITIONAL for p in parameters)
    for index, (role, word) in enumerate(zip(contract.passed, contract.words, strict=True)):
        if role in names and names.index(role) != index:
            return False
        if index >= len(positional):
            if not is_open:
                return False
            continue
        own = positional[index]
        if own.default is not Parameter.empty and word not in own.name.lower():
            return False
    return True


def _refusal(path: str, parameters: list[Parameter], contract: Contract) -> str:
    name = path.rpartition(":")[2].rpartition(".")[2]
    passed = ", ".join(contract.passed)
    pairs = zip(contract.passed, contract.words, strict=True)
    roles = {role: _named_like(parameters, word) for role, word in pairs}
    if all(roles.values()):  # it can do it, but takes these arguments elsewhere
        keywords = [f"{own}={role}" for role, own in roles.items()]
        names = {p.name for p in parameters}
        keywords += [f"{key}=None" for key in ("weights", "classifier_activation") if key in names]
        remedy = (
            f"name a function of your own: def {name.lower()}({passed}): return {name}({', '.join(keywords)})"
        )
    else:
        own = [p.replace(annotation=Parameter.empty) for p in parameters if p.name not in contract.passed]
        remedy = f"for example {name}({', '.join([*contract.passed, *_shown(own)])})"
    return (
        f"{path} is {name}({', '.join(_shown(parameters))}), allowed: a callable that takes "
        f"{' and '.join(contract.passed)} first; {remedy} (see {_PAGE})"
    )


def _named_like(parameters: list[Parameter], word: str) -> str | None:
    """A parameter that can be given by keyword and has this word in its name: `classes` for `class`."""
    if not word:  # authors give it any name
        return None
    names = [p.name for p in parameters if p.kind in _BY_KEYWORD]
    return next((n for n in names if word in n.lower() and not n.startswith("classifier")), None)


def _shown(parameters: list[Parameter]) -> list[str]:
    """The first parameters as in a `def`, without annotations."""
    bare = [str(p.replace(annotation=Parameter.empty)) for p in parameters]
    return bare if len(bare) <= _MAX_SHOWN + 1 else [*bare[:_MAX_SHOWN], "..."]
