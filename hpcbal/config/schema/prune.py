"""Sweeps: hyper-parameters that are drawn at random, and the rule that stops DNNs early."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, Strict, ValidationInfo, model_validator

from hpcbal.config.schema.objective import predicted_by
from hpcbal.config.schema.section import COUNT_ALLOWED, MOST, Section, key, wrong

if TYPE_CHECKING:
    from hpcbal.config.schema.dnn import DnnConfig
    from hpcbal.policies.pruning.rules import PruneRule


_DIGITS = 4
_ALL_DIGITS = 17  # of a float
_NUM_APART = 1000
_BOUNDS = "[lower, upper] with lower < upper"
_Number = Annotated[float, Field(ge=-MOST, le=MOST)]
_Whole = Annotated[int, Field(ge=-MOST, le=MOST)]
_KINDS = ("uniform", "log_uniform", "integers", "choice")


class Distribution(Section):
    """From what the values of one key are drawn; exactly one of these.

    A drawn number that is not whole is rounded to four significant digits, so that it can be in a name, or to
    as many as it takes to tell a thousand numbers between its bounds apart.
    """

    uniform: Annotated[tuple[_Number, _Number], Strict(False)] | None = key(
        None, "All numbers between two bounds, equally likely.", _BOUNDS
    )
    log_uniform: Annotated[tuple[_Number, _Number], Strict(False)] | None = key(
        None, "Numbers between two bounds, by their logarithm.", f"{_BOUNDS}, above 0"
    )
    integers: Annotated[tuple[_Whole, _Whole], Strict(False)] | None = key(
        None, "Whole numbers between two bounds, both included, equally likely.", f"{_BOUNDS}, whole numbers"
    )
    choice: Annotated[tuple[Any, ...], Strict(False)] | None = key(
        None, "These values, equally likely.", "a list of at least one value", min_length=1
    )

    @property
    def kind(self) -> str:
        """Which of the keys is given."""
        return next(name for name in _KINDS if getattr(self, name) is not None)

    @model_validator(mode="after")
    def _check(self) -> Distribution:
        given = [name for name in _KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            raise wrong("", f"got {', '.join(given) or 'nothing'}, allowed: one of {', '.join(_KINDS)}")
        bounds = self.uniform or self.log_uniform or self.integers
        if bounds is not None and bounds[0] >= bounds[1]:
            raise wrong(given[0], f"got {list(bounds)}, allowed: {_BOUNDS}")
        if self.log_uniform is not None and self.log_uniform[0] <= 0.0:
            raise wrong(given[0], f"got {list(self.log_uniform)}, allowed: {_BOUNDS}, above 0")
        return self

    def draw(self, u: float) -> float | int:
        """The value at the share `u`, 0 <= u < 1, of the distribution; for `choice` its index."""
        if self.choice is not None:
            return int(u * len(self.choice))
        if self.integers is not None:
            low, high = self.integers
            return low + int(u * (high - low + 1))
        if self.log_uniform is not None:
            low_log, high_log = map(math.log, self.log_uniform)
            return _rounded(math.exp(low_log + u * (high_log - low_log)), self.log_uniform)
        assert self.uniform is not None
        least, most = self.uniform
        return _rounded(least + u * (most - least), self.uniform)


class SearchConfig(Section):
    """DNNs that differ in keys whose values are drawn at random, or proposed from the results of others."""

    samples: int = key(..., "Number of draws; each makes one DNN.", COUNT_ALLOWED, ge=1)
    sampler: Literal["random", "tpe"] = key(
        "random",
        "random: all at once, independently of each other; tpe: after `startup` random ones, one whenever a "
        "slot is free, where results promise better ones (tree-structured Parzen estimator of optuna).",
        "random, tpe",
    )
    purpose: Literal["best", "committee"] = key(
        "best",
        "For tpe: best proposes what promises the best DNN; committee, what promises to improve the "
        "committee of the others most.",
        "best, committee",
        alias="for",
    )
    startup: int = key(10, "For tpe: DNNs that are drawn at random first.", COUNT_ALLOWED, ge=1)
    seed: int | None = key(
        None, "Seed of the draws; null: the run's seed.", "null or a whole number, 0 or more", ge=0, lt=2**63
    )
    space: Mapping[str, Distribution] = key(
        ...,
        "The distribution of each key that varies.",
        "{key of a DNN: distribution}, e.g. '{optimizer.learning_rate: {log_uniform: [1e-4, 1]}}'",
        min_length=1,
    )

    @property
    def num_first(self) -> int:
        """How many DNNs there are from the start."""
        return self.samples if self.sampler == "random" else min(self.samples, self.startup)

    def draws(self, seed: int, name: str) -> list[dict[str, float | int]]:
        """Draw values for each sample at random, by key; for a `choice` the index of the value.

        A key has its own random numbers, and sample i is the i-th of them. So more samples, or more keys, do
        not change those there are.

        Args:
            seed: the run's seed.
            name: what tells sweeps with the same keys apart: the template of their names.
        """
        own = seed if self.seed is None else self.seed
        result: list[dict[str, float | int]] = [{} for _ in range(self.samples)]
        for dotted, distribution in self.space.items():
            # Seeded by text, and `random` alone: both are the same in all versions of Python 3.
            numbers = random.Random(f"{own}/{name}/{dotted}")
            for sample in result:
                sample[dotted] = distribution.draw(numbers.random())
        return result


class OpenSearchConfig(Section):
    """A sweep with `sampler: tpe`, whose later DNNs join the run as they are proposed."""

    name: str = key(..., "Template of the names of its DNNs.", "text with {sample}")
    search: SearchConfig = key(..., "What is searched.", "keys of search")
    dnn: Mapping[str, Any] = key(..., "The other keys of the sweep.", "keys of a DNN")
    defaults: Mapping[str, Any] = key({}, "The defaults of the file.", "keys of defaults")
    drawn: Mapping[str, Mapping[str, int | float]] = key(
        {}, "The drawn values of the DNNs so far; of a choice its index.", "{DNN: {key: number}}"
    )

    @property
    def num_open(self) -> int:
        """How many DNNs are still to be proposed."""
        return max(0, self.search.samples - len(self.drawn))

    def name_of(self, number: int) -> str:
        """Return the name of a sample."""
        return self.name.replace("{sample}", str(number))


def rounded_as_drawn(distribution: Distribution, value: float) -> float:
    """A proposed number with as many digits as a drawn one, so that it fits into a name."""
    bounds = distribution.log_uniform or distribution.uniform
    return value if bounds is None else _rounded(value, bounds)


def _rounded(value: float, bounds: tuple[float, float]) -> float:
    """Rounded to significant digits, but not beyond the bounds."""
    low, high = bounds
    finest = (high - low) / _NUM_APART
    tried = (float(f"{value:.{digits}g}") for digits in range(_DIGITS, _ALL_DIGITS))
    near = next((rounded for rounded in tried if abs(rounded - value) <= finest), value)
    return min(max(near, low), high)


NO_RULE, ASHA, MEDIAN, COMMITTEE = "none", "asha", "median", "committee"
_NUM_NAMED = 3


class PruneConfig(Section):
    """Which DNNs stop early because others are better, or because the committee does not need them."""

    rule: Literal["none", "asha", "median", "committee"] = key(
        NO_RULE,
        "asha: of the DNNs that reach a rung, the best 1/reduction train to the next one ([ASHA] Alg. 2); "
        "median: a DNN stops if it is below the median of the others' averages ([VIZIER]); committee: a DNN "
        "stops if its further training is predicted not to improve the committee.",
        "none, asha, median, committee",
    )
    dnns: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Strict(False)] = key(
        ("*",),
        "Names of the DNNs that are compared with each other and may stop; * and ? stand for any characters.",
        "a list of names or patterns such as 'resnet-*'",
        min_length=1,
    )
    reduction: int = key(
        3,
        "For asha: 1 of this many DNNs is promoted, and each rung has this many times the epochs.",
        "a whole number, 2 or more",
        ge=2,
    )
    min_epochs: int = key(
        1,
        "For asha: epochs up to the first rung. For committee: all DNNs train so many before any stops.",
        COUNT_ALLOWED,
        ge=1,
    )
    samples: int = key(
        512,
        "For committee: validation items, at most, whose predictions are compared; drawn by the run's seed. "
        "An item is a sample, or one of its labels or pixels.",
        COUNT_ALLOWED,
        ge=1,
    )
    tolerance: float = key(
        0.005,
        "For committee: by how much its predicted loss may rise when DNNs stop, as a share of it.",
        "0 to 1",
        ge=0.0,
        le=1.0,
    )
    warmup_epochs: int = key(
        1, "For median: no DNN stops before it has trained this many epochs.", COUNT_ALLOWED, ge=1
    )
    min_peers: int = key(
        5, "For median: no DNN stops while fewer others have trained as many epochs.", COUNT_ALLOWED, ge=1
    )

    def covers(self, name: str) -> bool:
        """Whether the DNN of this name may stop early."""
        return self.rule != NO_RULE and any(fnmatchcase(name, pattern) for pattern in self.dnns)

    def prune_rule(self) -> PruneRule | None:
        """The rule as the state machine uses it; None: no DNN stops early."""
        from hpcbal.policies.pruning.committee import Committee
        from hpcbal.policies.pruning.rules import Asha, Median

        if self.rule == ASHA:
            return Asha(self.reduction, self.min_epochs)
        if self.rule == MEDIAN:
            return Median(self.warmup_epochs, self.min_peers)
        if self.rule == COMMITTEE:
            return Committee(self.min_epochs, self.tolerance)
        return None


def _compares_one_metric(prune: PruneConfig, info: ValidationInfo) -> PruneConfig:
    """Reject a rule that would compare, say, losses with accuracies."""
    dnns: tuple[DnnConfig, ...] = info.data.get("dnns", ())
    if prune.rule == COMMITTEE:
        problem = why_no_committee([dnn for dnn in dnns if prune.covers(dnn.name)])
        if problem:
            raise wrong("rule", f"{problem}; list in prune.dnns those to be combined, or use another rule")
        return prune
    names: dict[tuple[str, str], list[str]] = {}
    for dnn in dnns:
        if prune.covers(dnn.name):
            names.setdefault((dnn.stop.watched, dnn.stop.resolved_mode), []).append(dnn.name)
    if len(names) > 1:
        given = "; ".join(f"{metric} ({mode}): {_some(its)}" for (metric, mode), its in names.items())
        raise wrong(
            "dnns",
            f"the DNNs are compared with each other, but do not watch the same metric ({given}), allowed: "
            "DNNs with the same stop.monitor; give all of them the same, or list here those to be compared",
        )
    return prune


def why_no_committee(dnns: Sequence[DnnConfig]) -> str:
    """Return why the predictions of DNNs have no mean, and what is allowed; empty if they have one."""
    several = [dnn.name for dnn in dnns if isinstance(dnn.loss, Mapping) and dnn.loss]
    if several:
        has = "has" if len(several) == 1 else "have"
        return f"got {COMMITTEE}, but {_some(several)} {has} several outputs, allowed: DNNs with one output"
    kinds: dict[str, list[str]] = {}
    for dnn in dnns:
        kinds.setdefault(predicted_by(dnn), []).append(dnn.name)
    if len(kinds) < 2:
        return ""
    given = "; ".join(f"{kind}: {_some(names)}" for kind, names in kinds.items())
    return (
        f"got {COMMITTEE}, but the DNNs do not predict the same ({given}), allowed: only classes, only "
        "labels, or only values, by their loss"
    )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NUM_NAMED} more" if len(names) > _NUM_NAMED else ""
    return ", ".join(names[:_NUM_NAMED]) + more


PruneOfDnns = Annotated[PruneConfig, AfterValidator(_compares_one_metric)]
"""The section, beside the DNNs that it compares."""
